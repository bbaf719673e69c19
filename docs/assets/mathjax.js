// MathJax comes with the site (docs/site/vendored.py); only pages that have equations load it.
if (document.querySelector(".arithmatex")) {
  const script = document.createElement("script");
  window.typeset = new Promise((done) => {
    window.MathJax = {
      tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]] },
      options: { ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex", enableMenu: false },
      startup: { pageReady: () => MathJax.startup.defaultPageReady().then(done) },
    };
  });
  script.src = new URL("mathjax/tex-svg.js", document.currentScript.src);
  document.head.append(script);
}
