from __future__ import annotations

import re
from pathlib import Path

import pytest

from safeecgmatch.reporting.names import method_name
from safeecgmatch.reporting.published import published

BENCHMARK = published("benchmark")


def test_every_table_is_complete() -> None:
    # A merged Supervised cell stands for both levels, so Table 3 has 12 methods x 2 levels x 2 datasets x 4 metrics.
    sizes = {"summary": 6 * 2 * 2 * 2, "ablation": 3 * 2 * 2, "benchmark": 12 * 2 * 2 * 4, "sensitivity": 3 * 4}
    assert {table: len(published(table)) for table in sizes} == sizes
    assert all(0 < cell.std < cell.mean < 1 for table in sizes for cell in published(table).values())


def test_table_1_repeats_table_3() -> None:
    for key, cell in published("summary").items():
        assert (cell.mean, cell.std) == (BENCHMARK[key].mean, BENCHMARK[key].std)


def test_table_4_repeats_table_3_at_weight_one() -> None:
    for (dataset, row, ood, metric), cell in published("sensitivity").items():
        if row == "1":
            same = BENCHMARK[dataset, "safeecgmatch", ood, metric]
            assert (cell.mean, cell.std) == (same.mean, same.std)


def cells_in(latex: str) -> list[tuple[float, float, str]]:
    """Every printed mean ± std in reading order, with its mark."""
    pattern = r"(?:\\(textbf|best|underline|second)\{)?(\d\.\d{3})\$\\pm\$(\d\.\d{3})"
    names = {"textbf": "bold", "best": "bold", "underline": "underline", "second": "underline", "": ""}
    return [(float(mean), float(std), names[mark]) for mark, mean, std in re.findall(pattern, latex)]


@pytest.mark.real
def test_equals_the_latex_source(material: Path) -> None:
    source = (material / "paper" / "safeecgmatch.tex").read_text(encoding="utf-8")
    labels = {"summary": "tab:benchmark-summary", "ablation": "tab:ablation", "benchmark": "tab:benchmark-results",
              "sensitivity": "tab:sensitivity-branch-weight"}  # fmt: skip
    for table, label in labels.items():
        body = source[source.index(rf"\label{{{label}}}") :]
        body = body[body.index(r"\midrule") : body.index(r"\bottomrule")]
        cells = published(table)
        metrics = list(dict.fromkeys(metric for _, _, _, metric in cells))
        datasets = list(dict.fromkeys(dataset for dataset, _, _, _ in cells))
        rows = list(dict.fromkeys(row for _, row, _, _ in cells))
        if table in ("summary", "benchmark"):  # rows must stand in the order of the source
            places = [re.search(rf"[{{ ]{re.escape(method_name(row).name)}[~}} ]", body).start() for row in rows]  # type: ignore[union-attr]
            assert places == sorted(places)
        expected = []
        for row in rows:
            levels = [ood for _, r, ood, _ in cells if r == row]
            merged = any(cell.merged for (_, r, _, _), cell in cells.items() if r == row)
            for ood in list(dict.fromkeys(levels))[: 1 if merged else None]:
                for dataset in datasets:
                    for metric in metrics:
                        cell = cells[dataset, row, ood, metric]
                        expected.append((cell.mean, cell.std, cell.mark))
        assert cells_in(body) == expected
