"""Hyperparameters of the robustness paper, transcribed from its text, with the words that print them.

Quotes are literal, formulas as LaTeX. A line that is the same in several studies is written once.
"""

from dataclasses import replace

from antiphase.studies.papers.transcription import Line, unprinted

_S1, _S3, _S4, _C1 = "Section 5.1", "Section 5.3", "Section 5.4", "Appendix C.1"
_ADAM = r"using the Adam optimizer with a learning rate of $\eta = 5 \times 10^{-4}$ and a batch size of $B = 128$"
_EPOCHS = "We train the models for 100 epochs on CIFAR-10 and 300 epochs on CIFAR-100"
_TIMM = "we adopt the architecture provided in the `timm` library"
_SAME_DATA = "we train and evaluate each model on the same dataset"
_OF_BOTH = "ViT and DiffViT trained from for controlled studies"
_RUNS = "reported the average ASR over multiple runs"

_OPEN = (  # what the paper does not say of any training
    unprinted(
        "train.schedule", "constant", source=_C1, why="The paper names no schedule of the learning rate."
    ),
    unprinted("train.weight_decay", 0.0, source=_C1, why="The paper names no weight decay."),
    unprinted("train.augment", "none", source=_C1, why="The paper names no augmentation."),
    unprinted(
        "train.seeds",
        3,
        source="Appendix D.3",
        quote=_RUNS,
        why="The paper does not say how many runs, nor whether a run is a training or an attack.",
    ),
)
_RECIPE = (
    Line("train.optimizer", ("adam",), _C1, _ADAM),
    Line("train.learning_rate", (5e-4,), _C1, _ADAM),
    Line("train.batch_size", (128,), _C1, _ADAM),
    *_OPEN,
)
_LAMBDA = Line("train.initial_lambda", (0.8,), _S1, r"initialized at $\lambda_{\text{init}} = 0.8$")


def _size(pixels: int, patches: int) -> Line:
    words = f"{pixels} pixels, patches of {patches}, 192 wide, 6 heads"
    return unprinted(
        "train.size", words, source=_C1, quote=_TIMM, why="The paper gives no sizes; the width is ViT-Tiny's."
    )


_CIFAR = (
    Line(
        "train.data", ("cifar10", "cifar100"), _S1, "For ViT and DiffViT, we train on CIFAR-10 and CIFAR-100"
    ),
    Line("train.epochs", (100, 300), _C1, _EPOCHS),
    _size(32, 4),
)
_CIFAR10 = (Line("train.epochs", (100,), _C1, "100 epochs on CIFAR-10"), _size(32, 4))
_BOTH = Line("train.attention", ("softmax", "differential"), _S1, _OF_BOTH)
_ONE = Line("train.depth", (1,), _S1, "Unless otherwise stated, we use $D = 1$.")
_DEPTHS = Line("train.depth", (1, 2, 4, 8, 12), _S1, r"$D \in \{1, 2, 4, 8, 12\}$")

_IMAGES = unprinted(
    "attack.images", 1000, source=_S1, why="The paper does not say how many images it attacks."
)
_CLIP_IMAGES = Line(
    "attack.images",
    (40_000, 50_000),
    _S1,
    "(40k images annotated by 80 categories) and the ImageNet-1k validation set (Deng et al., 2009) (50k images",
    ours=(1000,),
    why="Fewer images of each set, as of CIFAR.",
)
_CHAIN = (
    unprinted(
        "attack.nested",
        "up",
        source="Section 5.2",
        why="An image broken at one ε counts as broken at every larger one; the paper does not say.",
    ),
    unprinted(
        "attack.seeds",
        1,
        source="Appendix D.3",
        quote=_RUNS,
        why="The paper does not say how many random starts it averages over.",
    ),
)
_STEPS = (
    unprinted("attack.steps", 20, source="Appendix C.2.1", why="The paper does not give PGD's steps."),
    unprinted(
        "attack.step_size", "ε/4", source="Appendix C.2.1", why="The paper does not give PGD's step size."
    ),
)
_PGD_NAME = Line("attack.name", ("pgd",), "Appendix C.2.1", "optimized via Projected Gradient Descent (PGD)")
_LINF = Line("attack.norm", ("linf",), _S1, r"PGD and AutoAttack are constrained under ℓ_{∞} norm")
_START = Line("attack.random_start", (True,), "Appendix D.3", "random initializations per input")
_CLIMB = Line(
    "attack.objective",
    ("cross_entropy",),
    "Appendix C.2.1",
    "the attack instead minimizes the (negative) cross-entropy loss to induce misclassification",
)
_PGD = (_PGD_NAME, _LINF, *_STEPS, *_CHAIN)
_PATCH = (
    Line(
        "attack.name",
        ("patch",),
        "Appendix C.2.1",
        r"a fixed-size square patch of dimension $w \times w$ inserted at a random location",
    ),
    Line(
        "attack.eps_255", (255.0,), "Appendix C.2.1", r"We set $\epsilon = 1.0$ and vary the patch size w ."
    ),
    *_STEPS,
    _CHAIN[1],
)
_ALL_EPS = unprinted(
    "attack.eps_255",
    0.5,
    1,
    2,
    4,
    8,
    why="The values of ε are only drawn; these go up to Section 4.3's 8/255.",
)
_BY_DEPTH = Line(
    "attack.eps_255",
    (1, 4),
    "Figure 3",
    r"ASR drops with depth for $\epsilon=1/255$; at $\epsilon=4/255$ both converge to high ASR",
    exact=False,
)
_OFFICIAL = "We employ the official AutoAttack implementation available at GitHub"
_AUTOATTACK = (
    Line(
        "attack.name",
        ("autoattack",),
        "Section 5.2",
        "Under PGD and AutoAttack, those ASRs are highest at depth 1",
    ),
    Line(
        "attack.stages",
        ("apgd-ce", "apgd-dlr", "fab", "square"),
        "Appendix C.2.2",
        "combines four complementary attacks: APGD-CE, APGD-DLR, FAB (Croce & Hein, 2020a), and Square Attack",
    ),
    _LINF,
    *(
        Line(f"attack.{name}", (value,), "Appendix C.2.2", _OFFICIAL, repository="fra31/auto-attack")
        for name, value in (("steps", 100), ("queries", 5000), ("p_init", 0.8), ("rho", 0.75), ("eta", 1.05))
    ),
    *_CHAIN,
    _BY_DEPTH,
)
_CW_CODE = "We use a PyTorch implementation based on the open-source repository"
_CW = (
    Line(
        "attack.name",
        ("carlini-wagner",),
        "Section 5.2",
        "under CW, deeper DiffViTs require larger perturbations",
    ),
    Line("attack.norm", ("l2",), _S1, "while CW is applied under ℓ_2 "),
    *(
        Line(f"attack.{name}", (value,), "Appendix C.2.3", _CW_CODE, repository="kkew3/pytorch-cw2")
        for name, value in (
            ("steps", 1000),
            ("search_steps", 5),
            ("learning_rate", 0.01),
            ("initial_const", 1e-3),
        )
    ),
    unprinted(
        "attack.eps_255",
        2550,
        source="Figure 3(c)",
        why="An example farther than 10 in the [0, 1] pixel counts as not found; the paper sets no limit.",
    ),
    _CHAIN[1],
)
_BALL = (
    Line(
        "sense.eps_255", (8,), _S3, r"sampling ξ uniformly from ℓ_∞ -bounded noise with $\|\xi\| \leq 8/255$"
    ),
    unprinted(
        "sense.samples", 100, source=_S3, why="The paper does not say how many ξ it draws for an image."
    ),
)
_XI = r"For perturbations ξ bounded by $\|\xi\| \leq 8/255$, we compute cosine similarity between gradients"
_LIPSCHITZ = Line("sense.part", ("lipschitz",), _S3, "We estimate the local Lipschitz constant (4)")
_PROBED = unprinted(
    "sense.images", 100, source=_S3, why="The paper does not say at how many images it measures."
)
_OWN_DATA = Line("sense.data", ("cifar10", "cifar100"), "Section 5", _SAME_DATA)
_WITH_CLIP = replace(
    _OWN_DATA,
    ours=("cifar10", "cifar100", "imagenet"),
    why="The paper does not say at which images the CLIPs are measured.",
)
_GIVEN = (
    Line(
        "given.spec",
        ("diffclip:hammh0a/DiffCLIP_ViTB16_CC12M#lambda_init=0.8",),
        _C1,
        "We use the pre-trained weights of DiffCLIP_ViT16_CC12M",
        exact=False,
    ),
)
_BASELINE = (
    *_GIVEN,
    unprinted(
        "given.spec",
        "diffclip:hammh0a/CLIP_ViTB16_CC12M",
        source=_C1,
        exact=False,
        quote="The authors have also publicly released the corresponding CLIP models",
        why="The paper does not name it; its name on the hub is inferred.",
    ),
)
_COSINE = (
    Line(
        "attack.objective",
        ("cosine",),
        "Appendix C.2.1",
        "We minimize the cosine similarity between the perturbed visual embedding and its associated text prompt",
    ),
    Line(
        "attack.prompt", ("a photo of {}",), "Appendix C.2.1", "the class prompt (e.g., “a photo of <class>”)"
    ),
)
_CLIP_DATA = Line(
    "attack.data", ("coco", "imagenet"), _S1, "For CLIP and DiffCLIP, we use the MSCOCO 2014 validation set"
)
_PAIRS = (*_RECIPE, _LAMBDA, *_CIFAR, _BOTH)
_DIFFVIT = Line(
    "train.attention", ("differential",), _S4, r"cosine similarity between gradients $\nabla_{\xi} A_1$"
)

ROBUSTNESS: dict[str, tuple[Line, ...]] = {
    "table-1": (
        *_RECIPE,
        *_CIFAR10,
        _ONE,
        *_PGD,
        _START,
        _CLIMB,
        _IMAGES,
        Line(
            "train.data",
            ("cifar10",),
            "Table 1",
            r"clean accuracy of DiffViT on CIFAR-10 when varying λ_{init}",
        ),
        Line("train.attention", ("differential",), "Table 1", "clean accuracy of DiffViT on CIFAR-10"),
        Line(
            "train.initial_lambda",
            (0.5, 0.7, 0.8, 0.85, 0.9, 0.95),
            "Table 1",
            "λ_{init} 0.5 0.7 0.8 (default) 0.85 0.9 0.95",
        ),
        Line("attack.eps_255", (1,), "Table 1", r"ASR ($\epsilon = 1/255$)", exact=False),
    ),
    "table-2": (
        *_RECIPE,
        _LAMBDA,
        _BOTH,
        *_STEPS,
        *_CHAIN,
        _START,
        _CLIMB,
        _IMAGES,
        _size(64, 8),
        Line("train.data", ("tiny-imagenet",), _S1, "We also include Tiny ImageNet"),
        Line("train.depth", (4,), _S1, "for ViT and DiffViT with depth 4"),
        unprinted("train.epochs", 100, source=_C1, why="The paper gives no epochs for Tiny ImageNet."),
        Line("attack.name", ("pgd", "patch"), "Appendix D.1", r"across patch sizes and small ℓ_∞ budgets"),
        Line("attack.width", (8, 4, 2), "Table 2", "patch=8 patch=4 patch=2"),
        Line(
            "attack.eps_255",
            (4, 2, 1, 0.5),
            "Table 2",
            r"$\epsilon = 4/255$ $\epsilon = 2/255$ $\epsilon = 1/255$ $\epsilon = 0.5/255$",
            exact=False,
        ),
    ),
    "table-3": (
        *_RECIPE,
        *_CIFAR10,
        _LAMBDA,
        _ONE,
        *_PGD,
        _START,
        _CLIMB,
        _IMAGES,
        Line("train.data", ("cifar10",), "Table 3", "with adversarial training when varying ϵ on CIFAR-10"),
        Line(
            "train.attention",
            ("differential",),
            "Table 3",
            "vanilla DiffViT and DiffViT with adversarial training",
            ours=("softmax", "differential"),
            why="ViT is trained adversarially as well, for comparison.",
        ),
        Line("train.adversarial_eps_255", (0.25, 0.5, 1.0), "Table 3", r"+ Adv. Train ($\epsilon=0.25/255$)"),
        unprinted(
            "train.adversarial",
            "pgd, 3 steps, warm-up epochs 1",
            source="Appendix D.2",
            quote="The adversarial training with small perturbations",
            why="The paper does not say how it trains adversarially.",
        ),
        Line(
            "attack.eps_255",
            (0.25, 0.5, 1),
            "Table 3",
            r"ASR ($\epsilon=0.25/255$) ASR ($\epsilon=0.5/255$) ASR ($\epsilon=1/255$)",
        ),
    ),
    "figure-2a": (*_PAIRS, _ONE, *_PGD, _START, _CLIMB, _IMAGES, _ALL_EPS),
    "figure-2c": (
        *_PAIRS,
        _ONE,
        *_PATCH,
        _IMAGES,
        _CLIMB,
        unprinted(
            "attack.width", 2, 4, 8, source="Figure 2", why="The widths are only drawn; these are Table 2's."
        ),
    ),
    "figure-2b": (*_BASELINE, *_COSINE, _CLIP_DATA, *_PGD, _START, _CLIP_IMAGES, _ALL_EPS),
    "figure-2d": (
        *_BASELINE,
        *_COSINE,
        _CLIP_DATA,
        *_PATCH,
        _CLIP_IMAGES,
        unprinted(
            "attack.width",
            8,
            16,
            32,
            source="Figure 2",
            why="The widths are only drawn; these are about Table 2's share of an image.",
        ),
    ),
    "figure-3a": (*_PAIRS, _DEPTHS, *_PGD, _START, _CLIMB, _IMAGES, _BY_DEPTH),
    "figure-3b": (*_PAIRS, _DEPTHS, *_AUTOATTACK, _IMAGES),
    "figure-3c": (*_PAIRS, _DEPTHS, *_CW, _IMAGES),
    "figure-3d": (*_PAIRS, _DEPTHS, *_BALL, _LIPSCHITZ, _PROBED, _OWN_DATA),
    "figure-4": (*_PAIRS, _DEPTHS, *_BALL, replace(_LIPSCHITZ, exact=False), _PROBED, _WITH_CLIP, *_BASELINE),
    "figure-5": (
        *_RECIPE,
        _LAMBDA,
        *_CIFAR,
        _DIFFVIT,
        _DEPTHS,
        _PROBED,
        _WITH_CLIP,
        *_GIVEN,
        Line("sense.part", ("alignment-perturbed",), _S4, _XI, exact=False),
        Line("sense.eps_255", (8,), _S4, _XI),
    ),
    "figure-6": (
        *_PAIRS,
        _DEPTHS,
        *_BASELINE,
        *_PGD[:-1],
        _START,
        _ALL_EPS,
        Line(
            "attack.data",
            ("cifar10", "cifar100", "imagenet", "coco"),
            "Appendix D.3",
            "Across all datasets (CIFAR-10/100, ImageNet, and COCO)",
        ),
        Line(
            "attack.restarts",
            (1, 3),
            "Appendix D.3",
            "re-run PGD with three random initializations per input",
        ),
        _CLIP_IMAGES,
        unprinted(
            "attack.seeds",
            3,
            source="Appendix D.3",
            quote=_RUNS,
            why="The paper does not say how many random starts it averages over.",
        ),
    ),
    "theory-depth": (
        *_PAIRS,
        _DEPTHS,
        *_PGD,
        _START,
        _CLIMB,
        _IMAGES,
        _ALL_EPS,
        _PROBED,
        _OWN_DATA,
        Line(
            "sense.part",
            ("depth", "branches"),
            "Section 4.2",
            "denotes the average reduction factor from noise cancellation at layer d",
        ),
        unprinted("sense.travel_255", 1, 4, source="Section 4.2", why="The paper gives no numbers for this."),
    ),
    "theory-radius": (
        *_PAIRS,
        _DEPTHS,
        *_CW,
        _IMAGES,
        _PROBED,
        _OWN_DATA,
        Line(
            "sense.part",
            ("alignment",),
            "Appendix B",
            "both Δm , ρ and θ depend on the perturbation direction",
        ),
    ),
    "layer-sensitivity": (
        *_PAIRS,
        _DEPTHS,
        *_BALL,
        _PROBED,
        _OWN_DATA,
        Line(
            "sense.part",
            ("alignment", "lipschitz", "depth"),
            "Section 4",
            "Relating DA’s gradient behavior to Lipschitz continuity",
        ),
    ),
}
