"""The page, figures and words of ``antiphase evaluate``."""
