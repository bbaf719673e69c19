"""Hyperparameters of DiffCLIP, transcribed from its text, with the words that print them.

Quotes are literal: the text was converted from a PDF, which put spaces into names ("Diff CLIP", "Adam W") and lost
signs ("5 10 4" is 5·10⁻⁴, "0.8 0.6 exp( 0.3 l)" is 0.8 − 0.6·exp(−0.3·l)).
"""

from dataclasses import replace

from antiphase.studies.papers.transcription import Line, unprinted

_SETUP = "Section 4.1"
_WARM = "All models train for 40 epochs, using one epoch of linear warmup, a global batch size of 4096"
_RATE = "We set the base learning rate to 5 10 4 with weight decay of 0.5."
_B16 = "We compare a baseline CLIP-B/16 to our Diff CLIP-B/16"
_SIMILAR = "Training parameters are chosen similar to Synth CLIP"
_ADOPTED = "training code is adopted from SLIP"


def _slip(name: str, *values: object) -> Line:
    return Line(name, values, _SETUP, _ADOPTED, repository="facebookresearch/SLIP")


_CLIP = (
    Line("clip.epochs", (40,), _SETUP, _WARM),
    Line("clip.warmup_epochs", (1.0,), _SETUP, _WARM),
    Line("clip.batch_size", (4096,), _SETUP, _WARM),
    Line("clip.learning_rate", (5e-4,), _SETUP, _RATE),
    Line("clip.weight_decay", (0.5,), _SETUP, _RATE),
    Line(
        "clip.image",
        ("224 pixels, patches of 16, 768 wide, 12 layers, 12 heads",),
        "Section 4.2",
        _B16,
        repository="hammoudhasan/DiffCLIP",
    ),
    Line(
        "clip.text",
        ("77 tokens, 512 wide, 12 layers, 8 heads",),
        _SETUP,
        _SIMILAR,
        repository="hammoudhasan/SynthCLIP",
    ),
    _slip("clip.betas", (0.9, 0.98)),
    _slip("clip.crop", (0.5, 1.0)),
    _slip("clip.warmup_start", 1e-6),
    _slip("clip.final_learning_rate", 1e-5),
    unprinted(
        "clip.precision", "bf16", source=_SETUP, why="The paper names no precision; bf16 is the fastest."
    ),
    Line(
        "clip.seeds",
        (1,),
        "Section 6",
        "we are unable to perform large-scale multiseed pre-training runs",
        ours=(3,),
        why="Three trainings of each model, so that a difference has an interval over trainings.",
    ),
)
_SETS = (
    Line(
        "clip.data",
        ("cc3m", "cc12m"),
        _SETUP,
        "We pretrain on Conceptual Captions 3M (CC3M) (Sharma et al., 2018) and Conceptual Captions 12M (CC12M)",
    ),
)


def _on(data: str, source: str, quote: str) -> tuple[Line, ...]:
    return (Line("clip.data", (data,), source, quote),)


_TWINS = (
    Line(
        "clip.parameters",
        (149_619_969, 149_629_185),
        _SETUP,
        "a standard CLIP-B/16",
        repository="hammoudhasan/DiffCLIP",
    ),
    Line("clip.lambda_init", (0.8,), _SETUP, "We initialize each layer s λ at 0.8 unless stated otherwise."),
)
_NINE = ("food101", "cifar10", "cifar100", "sun397", "aircraft", "dtd", "pets", "caltech101", "flowers102")
_NINE_SAID = (
    "linear probing and few-shot evaluation (El Banani et al., 2023) on nine image-classification datasets"
)
_LGSSL = "We follow established practices for linear probing and few-shot evaluation (El Banani et al., 2023)"


def _lgssl(name: str, *values: object) -> Line:
    return Line(name, values, _SETUP, _LGSSL, repository="mbanani/lgssl")


_AGAIN = "The paper does not say over how many seeds its numbers are means."
_FEW_SHOT = (
    Line("few-shot.data", _NINE, _SETUP, _NINE_SAID),
    _lgssl("few-shot.space", "raw"),
    _lgssl("few-shot.ways", 5),
    _lgssl("few-shot.shots", 5),
    _lgssl("few-shot.queries", 6),
    _lgssl("few-shot.episodes", 5000),
)
_PROBE = (
    Line("probe.data", _NINE, _SETUP, _NINE_SAID),
    _lgssl("probe.space", "raw"),
    _lgssl("probe.objectives", "norm"),
    _lgssl("probe.iterations", 1000),
)
_THREE = "we run the non-deterministic linear probing and few-shot evaluation from Table 1 on three seeds"
_SEEDS = {task: Line(f"{task}.seeds", (3,), "Appendix B", _THREE) for task in ("probe", "few-shot")}
_ONCE = tuple(unprinted(f"{task}.seeds", 3, source="Table 1", why=_AGAIN) for task in ("probe", "few-shot"))
_SHIFTS = ("imagenet", "imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch")
_PROMPTS = unprinted(
    "zero-shot.templates",
    "the data's own, else 80 and 7",
    source=_SETUP,
    why="The paper does not give its prompts; these are OpenAI's 80 and SLIP's 7.",
)
_HOME = (Line("zero-shot.data", ("imagenet",), "Table 2", "zero-shot Image Net accuracy (%)"), _PROMPTS)
_SHIFTED = (
    Line(
        "zero-shot.data",
        _SHIFTS,
        "Figure 3",
        "on Image Net, Image Net-V2, Image Net-A, Image Net-R, and Image Net-Sketch, plus the average",
    ),
    _PROMPTS,
)
_RETRIEVED = (
    Line(
        "retrieval.data",
        ("flickr30k", "flickr8k", "coco-karpathy"),
        "Table 2",
        "Flickr30k Flickr8k MSCOCO Avg.",
    ),
    Line(
        "retrieval.captions",
        ("all",),
        _SETUP,
        "we use the LAION CLIP Benchmark framework",
        repository="LAION-AI/CLIP_benchmark",
    ),
)
_CC12M = _on("cc12m", "Section 4.4", "Both CLIP and Diff CLIP are pretrained on CC12M")
_SIX = (*_PROBE, *_FEW_SHOT, *_ONCE, *_RETRIEVED, *_SHIFTED)

_VLM = "Section 5.1"
_PARTS = "combining our Diff CLIP-CC12M vision encoder with the Qwen-2.5-Instruct-0.5B (Yang et al., 2024)"
_TINY = "All experiments were conducted using the Tiny LLa VA repository"
_STAGES = {
    "align": (
        "The projection pretraining similarly employed 48 samples per GPU, a learning rate of 1 10 3, no weight decay, "
        "a warm-up ratio of 0.03, and cosine decay scheduling."
    ),
    "tune": (
        "The hyperparameters for fine-tuning included a batch size of 48 samples per GPU, a learning rate of 2 10 5, "
        "zero weight decay, a warm-up ratio of 0.03, and cosine decay scheduling."
    ),
}
_TRAINER = "Not printed; the default of transformers' trainer."
_ONE_WORD = "Answer the question using a single word or phrase."
_NO_ATTACK = "The paper does not attack these models."


def _stage(stage: str, rate: float) -> tuple[Line, ...]:
    """Return the settings of a stage; 48 samples on each of "4 A100-80GB GPUs" are 192 a step."""
    said = _STAGES[stage]
    return (
        *(
            Line(f"{stage}.{name}", (value,), _VLM, said)
            for name, value in (
                ("batch_size", 192),
                ("learning_rate", rate),
                ("weight_decay", 0.0),
                ("warmup", 0.03),
                ("schedule", "cosine"),
            )
        ),
        _tiny(f"{stage}.epochs", 1),
        _tiny(f"{stage}.max_length", 2048),
        _tiny(f"{stage}.precision", "bf16"),
        unprinted(f"{stage}.betas", (0.9, 0.999), source=_VLM, why=_TRAINER),
        unprinted(f"{stage}.epsilon", 1e-8, source=_VLM, why=_TRAINER),
        unprinted(f"{stage}.gradient_norm", 1.0, source=_VLM, why=_TRAINER),
        unprinted(f"{stage}.seeds", 3, source="Table 3", why="One training for each tower's."),
    )


def _tiny(name: str, *values: object) -> Line:
    return Line(name, values, _VLM, _TINY, repository="TinyLLaVA/TinyLLaVA_Factory")


_ANSWERED = (
    Line("align.language", ("Qwen/Qwen2.5-0.5B-Instruct",), _VLM, _PARTS),
    Line(
        "align.projector", ("linear",), _VLM, "first, a linear projector was trained to align visual tokens"
    ),
    Line("align.trained", ("projector",), _VLM, "freezing all other components"),
    Line(
        "align.data",
        ("blip_laion_cc_sbu_558k.json",),
        _VLM,
        "we utilized the LAION-CC-SBU dataset (558K image-text pairs) used in the LLa VA training setup",
    ),
    _tiny("align.positions", 196),
    _tiny("align.hidden_state", -2),
    _tiny("align.prompt", "llava"),
    *_stage("align", 1e-3),
    Line(
        "tune.trained",
        ("projector, language model",),
        _VLM,
        "both the projector and the language encoder underwent instruction fine-tuning",
    ),
    Line(
        "tune.data",
        ("llava_v1_5_mix665k.json, coco/",),
        _VLM,
        "we adopted the COCO (Lin et al., 2014) subset (approximately 350K pairs) also used by LLa VA",
    ),
    *_stage("tune", 2e-5),
    replace(
        _tiny("tune.order", "by modality and length"),
        ours=("drawn",),
        why="Grouping saves padding; ours draws the batches, and sorts within each.",
    ),
    Line("pope.data", ("pope",), _VLM, "We evaluated the resulting models on the POPE (Li et al., 2023)"),
    _tiny("pope.suffix", _ONE_WORD),
    unprinted("answers.suffix", _ONE_WORD, source=_VLM, why=_NO_ATTACK),
    unprinted("answers.data", "pope", source=_VLM, why=_NO_ATTACK),
    unprinted("answers.attack", "apgd-ce", source=_VLM, why=_NO_ATTACK),
    unprinted("answers.steps", 100, source=_VLM, why=_NO_ATTACK),
    unprinted("answers.eps_255", 2, 4, source=_VLM, why=_NO_ATTACK),
    unprinted("answers.images", 100, source=_VLM, why=_NO_ATTACK),
)

DIFFCLIP: dict[str, tuple[Line, ...]] = {
    "diffclip-figure-1": (
        *_CLIP,
        *_on("cc3m", "Figure 1", "CC3M Pretraining: CLIP vs. Diff CLIP Across Six Tasks."),
        *_TWINS,
        *_SIX,
    ),
    "diffclip-table-1": (*_CLIP, *_SETS, *_TWINS, *_PROBE, *_FEW_SHOT, *_ONCE),
    "diffclip-table-2": (*_CLIP, *_SETS, *_TWINS, *_RETRIEVED, *_HOME),
    "diffclip-table-3": (*_CLIP, *_on("cc12m", _VLM, _PARTS), *_TWINS, *_ANSWERED),
    "diffclip-table-4": (*_CLIP, *_SETS, *_TWINS, *_PROBE, _SEEDS["probe"]),
    "diffclip-table-5": (*_CLIP, *_SETS, *_TWINS, *_FEW_SHOT, _SEEDS["few-shot"]),
    "diffclip-figure-3": (*_CLIP, *_SETS, *_TWINS, *_SHIFTED),
    "diffclip-figure-4": (
        *_CLIP,
        *_CC12M,
        *_TWINS,
        Line("mmvp.data", ("mmvp",), "Section 4.4", "we employ the MMVP-VLM benchmark"),
    ),
    "diffclip-figure-5": (
        *_CLIP,
        *_on("cc12m", "Figure 5", "all pretrained on CC12M"),
        *_SIX,
        replace(_TWINS[0], values=(149_619_969, 149_629_185, 149_624_577)),
        Line(
            "clip.lambda_init",
            (0.8, "depth"),
            "Section 4.5",
            "All previous experiments used a fixed initialization λinit = 0.8 for differential attention. However, "
            "(Ye et al., 2024) proposes a dynamic schedule",
        ),
    ),
    "diffclip-attention": (
        *_CLIP,
        *_TWINS,
        unprinted(
            "clip.data",
            *_CC12M[0].values,
            source="Figure 2",
            quote="Comparing CLIP vs. Diff CLIP Attention Maps.",
            why="The paper does not say which models the maps are of.",
        ),
        Line("look.queries", (2,), "Figure 2", "matching each image against two different textual queries"),
        Line(
            "look.texts",
            ("mug", "lamp", "flower", "dog"),
            "Figure 2",
            "Queries: First Row: Mug , Lamp ; Second Row: Flower , Dog .",
            ours=("dog", "potted plant"),
            why="The paper's photographs are not published; these are the nearest classes of COCO.",
        ),
        unprinted(
            "look.data", "coco-objects", source="Figure 2", why="The paper's photographs are not published."
        ),
        unprinted("look.images", 200, 2, source="Figure 6", why="The paper chose its images by hand."),
    ),
    "map-correlation": (
        Line(
            "given.spec",
            ("diffclip:hammh0a/DiffCLIP_ViTB16_CC12M#lambda_init=0.8",),
            "Abstract",
            "Code and models can be found at",
            repository="hammh0a's models on the hub",
            exact=False,
        ),
        unprinted(
            "sense.part",
            "branches",
            source="Appendix C",
            why="The paper does not measure how the maps correlate.",
            quote="implicitly encouraged to capture more diffuse, high-entropy patterns often corresponding to noise",
        ),
        unprinted("sense.data", "imagenet", source="Appendix C", why="The paper does not measure this."),
        unprinted("sense.images", 100, source="Appendix C", why="The paper does not measure this."),
        unprinted("sense.travel_255", 8, 64, source="Appendix C", why="The paper does not measure this."),
    ),
}
