"""Why a study's numbers cannot be set beside the paper's: generated data, or in which sizes and settings it differs."""

from __future__ import annotations

from safeecgmatch.config import PROPOSED, Params
from safeecgmatch.reporting.names import corpus_size, method_name
from safeecgmatch.reporting.published import paper_setting


def generated(params: Params, dataset: str) -> bool:
    return params.data.source(dataset).source == "phantom"


def size_barriers(params: Params, dataset: str) -> list[str]:
    """In which sizes and settings the study is not the paper's: gaps and ranks may be compared, levels may not."""
    paper, source, train = paper_setting(), params.data.source(dataset), params.train
    sizes = paper["datasets"][dataset]
    pairs = [
        (params.data.sampling_rate, paper["sampling_rate"], "{} Hz"),
        (params.model.width, paper["width"], "width {}"),
        (train.iterations, paper["iterations"], "{:,} iterations"),
        (train.epoch, paper["epoch"], "epochs of {:,} iterations"),
        (train.warm_up, paper["warm_up"], "a warm-up of {:,} iterations"),
        (train.batch, paper["batch"], "batches of {}"),
        (train.learning_rate, paper["learning_rate"], "learning rate {:g}"),
        (source.labels_per_class, sizes["labels_per_class"], "{} labels per class"),
        (source.pool_size, sizes["pool_size"], "a pool of {:,}"),
        (params.split.strategy, paper["split"], "{} split"),
    ]
    found = [corpus_size(source, dataset)] if source.corpus else []
    return found + [text.format(ours) for ours, printed, text in pairs if ours != printed] + changed_methods(params)


def changed_methods(params: Params) -> list[str]:
    """Thresholds and switches (starts among them) that are not those of the protocol, with the methods concerned."""
    changed: dict[str, list[str]] = {}
    thresholds = paper_setting()["thresholds"]
    for method in [*params.grid.methods, PROPOSED]:
        section = params.methods.get(method, {})
        known = thresholds.get(method, {})
        names = [name for name, value in known.items() if section.get(name, value) != value]
        for name in [*names, *section.get("switches", {}).get(params.protocol, {})]:
            changed.setdefault(name.replace("_", " "), []).append(method_name(method).name)
    return [f"{name} of {', '.join(methods)}" for name, methods in changed.items()]


def barriers(params: Params, dataset: str) -> list[str]:
    """All of them; empty if the study's numbers on this dataset may be set beside the paper's."""
    return (["generated data"] if generated(params, dataset) else []) + size_barriers(params, dataset)
