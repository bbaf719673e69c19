"""Conceptual Captions, the training sets of the DiffCLIP paper: their shards, and how to download them."""

CC3M, CC12M = "shards:cc3m/{00000..00331}.tar", "shards:cc12m/{00000..01242}.tar"
"""The sources of ``load_pairs``: shards of 10,000 links each, named as img2dataset names them, in the data folder."""

TITLES = {CC3M: "CC3M", CC12M: "CC12M"}
"""The names of these sources in the paper."""

# page of the links, columns of the file, which has no header line
_LINKS = {
    CC3M: ("https://ai.google.com/research/ConceptualCaptions/download", r"caption\turl"),
    CC12M: ("https://storage.googleapis.com/conceptual_12m/cc12m.tsv", r"url\tcaption"),
}


def how_to_get(pattern: str, root: str) -> str | None:
    r"""Return the commands that download a set whose shards are missing; None for other patterns.

    The shorter side is resized to 224 pixels (DiffCLIP, Section 4.1); img2dataset's default adds a border instead.

    Source: img2dataset's ``dataset_examples/cc3m.md`` and ``cc12m.md``.

    Args:
        pattern: the pattern behind ``shards:``.
        root: data folder.

    >>> how_to_get("cc3m/{00000..00331}.tar", "data").partition(";")[0]
    'to get CC3M, save the links of https://ai.google.com/research/ConceptualCaptions/download as cc3m.tsv'
    """
    source = f"shards:{pattern}"
    if source not in _LINKS:
        return None
    page, columns = _LINKS[source]
    title, name = TITLES[source], TITLES[source].lower()
    return (
        f"to get {title}, save the links of {page} as {name}.tsv; then sed -i '1s/^/{columns}\\n/' {name}.tsv; "
        f"img2dataset --url_list {name}.tsv --input_format tsv --url_col url --caption_col caption --output_format "
        f"webdataset --output_folder {root}/{name} --resize_mode keep_ratio --image_size 224 --processes_count 16 "
        "--thread_count 64"
    )
