"""Owners in trees, summed, at the depth of blocks, found by name; sums worked out by hand from module_rows.py."""

from __future__ import annotations

import pytest
from module_rows import by_torch, cnn, compiled, llama, mlp, module, record, work

from proftrack.record.modules import Module, numbered, owned_share, starred
from proftrack.record.owners import blocks, folded, forest, in_order, largest, matching, rows, walk

LAYERS = 32 * 930
ALL_OF_LLAMA = LAYERS + 90 + 6 + 72 + 18 + 900 + 492 + 60 + 9


def test_trees_have_all_time_once() -> None:
    for modules in (llama(), cnn(), mlp(), compiled(), by_torch()):
        trees = forest(modules)
        assert sum(tree.busy_us for tree in trees) == pytest.approx(sum(each.busy_us for each in modules))
        assert sum(node.own is not None for node in walk(trees)) == len(modules)
    names = [(tree.path, tree.kind) for tree in forest(llama(1))]
    assert names == [("", "module"), ("AdamW", "optimizer"), ("clip", "region"), ("", "none")]
    assert [tree.path for tree in forest(compiled())] == ["body", "head", "AdamW"]


@pytest.mark.parametrize(
    ("modules", "owned", "of"),
    [
        (llama(), LAYERS + 72 + 18 + 900 + 492, ALL_OF_LLAMA),  # not: the root, model, clip, nothing
        (mlp(), 90, 100),
        (cnn(), 4 * 300 + 150 + 15 + 70, 4 * 300 + 150 + 15 + 70 + 5),
        (compiled(), 1089, 1089),
        (by_torch(), 45, 65),  # one Net_0 is no block, one Embed_0 is a leaf, two Layer_* are blocks
        ([module("", "Linear", 7)], 7, 7),
        ([Module(kind="none", other_us=3.0)], 0, 3),
        ([Module(path=name, kind="region", other_us=2.0) for name in ("gloo:all_reduce", "clip")], 2, 4),
    ],
)
def test_what_is_owned_at_the_depth_of_a_block(modules: list[Module], owned: float, of: float) -> None:
    assert owned_share(modules) == pytest.approx(owned / of)


def test_without_time_nothing_is_owned() -> None:
    assert owned_share([]) is None
    assert owned_share([module("a")]) is None


def test_alike_ones_are_summed_and_others_are_not() -> None:
    groups = {group.pattern: group for top in folded(forest(llama())) for group in top.walk()}
    layer = groups["model.layers.*"]
    assert (len(layer.nodes), layer.class_name, layer.busy_us, layer.own_us) == (32, "LlamaDecoderLayer", LAYERS, 0)
    assert (layer.part_us("forward"), layer.part_us("backward")) == (32 * 310, 32 * 620)
    assert groups["model.layers.*.mlp.act_fn"].busy_us == 32 * 30
    assert len(groups["model.layers.*.mlp"].nodes) == 32
    assert "model.norm" in groups


def test_numbered_ones_of_several_classes_are_groups_of_their_own() -> None:
    found = {(g.pattern, g.class_name): len(g.nodes) for top in folded(forest(mlp())) for g in top.walk()}
    assert found == {("", "Sequential"): 1, ("*", "Linear"): 2, ("1", "ReLU"): 1, ("", ""): 1}
    torch = {g.pattern: g.busy_us for top in folded(forest(by_torch())) for g in top.walk()}
    assert torch["Net_0.Layer_*"] == 40
    assert torch["Net_0.Layer_*.Act_*"] == 20
    stages = [module("stage_1", "Block", 3), module("stage_2", "Block", 2)]  # numbered by the program, not by torch
    assert [top.pattern for top in folded(forest(stages))] == ["stage_1", "stage_2"]


def test_numbers_in_names() -> None:
    """Where the class is known, it tells whether torch made the name; else the name has to look like one of torch's."""
    names = ["7", "LlamaMLP_7", "_DenseLayer_7", "block_7", "LlamaMLP", "Conv2d_1a_3x3", "Load data_7", "_7", ""]
    assert [numbered(name) for name in names] == ["*", "LlamaMLP_*", "_DenseLayer_*", *[""] * 6]
    assert numbered("block_7", "block") == "block_*"
    assert [numbered(name, "Linear") for name in ("Head_7", "_7", "Linear_")] == ["", "", ""]
    assert numbered("_7", "") == ""
    assert starred("Net_0.layers.7.mlp_2") == "Net_*.layers.*.mlp_2"


def test_numbered_ones_are_in_the_order_of_their_numbers() -> None:
    ran = [module(name, "Block", us) for name, us in (("9", 2), ("10", 3), ("2", 1))]
    assert [node.name for node in in_order(forest(ran))] == ["2", "9", "10"]
    named = [module(name, "Block", us) for name, us in (("9", 2), ("a", 3))]
    assert [node.name for node in in_order(forest(named))] == ["a", "9"]


def test_blocks_have_all_time_once_and_large_ones_are_divided() -> None:
    found = {node.path or node.kind: node.busy_us for node in blocks(forest(llama()))}
    assert found["model.layers.7"] == 930
    assert "model.layers.7.mlp" not in found
    assert (found["module"], found["model"], found["none"]) == (90, 6, 9)
    assert sum(found.values()) == ALL_OF_LLAMA
    two = {node.path or node.kind: node.busy_us for node in blocks(forest(llama(2)))}
    assert two["model.layers.1.mlp"] == 570  # a layer has 930 of 3507
    assert "model.layers.1" not in two
    assert sum(two.values()) == 3507
    assert [node.path for node in blocks(forest(cnn()))][:2] == ["layer1.0.conv1", "layer1.1.conv1"]


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("model.layers.3.mlp", ["model.layers.3.mlp"]),
        ("3.mlp", ["model.layers.3.mlp"]),
        ("layers", ["model.layers"]),
        ("layers.*.mlp", [f"model.layers.{i}.mlp" for i in range(4)]),
        ("mlp", [f"model.layers.{i}.mlp" for i in range(4)]),
        ("**.mlp", [f"model.layers.{i}.mlp" for i in range(4)]),
        ("model.**.mlp", [f"model.layers.{i}.mlp" for i in range(4)]),
        ("model.layers.1.*_layernorm", ["model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"]),
        ("LlamaForCausalLM", [""]),
        ("(LlamaForCausalLM)", [""]),
        ("LlamaMLP", [f"model.layers.{i}.mlp" for i in range(4)]),
        ("AdamW", ["AdamW"]),
        ("no decay", ["AdamW.no decay"]),
        ("clip", ["clip"]),
        ("nothing", []),
        ("", []),
    ],
)
def test_names(name: str, paths: list[str]) -> None:
    assert sorted(node.path for node in matching(llama(4), name)) == sorted(paths)


def test_a_name_is_no_other_pattern_than_its_parts() -> None:
    """`*` is within a part, `**` is not; brackets are those of a name."""
    depths = [module("a.mlp", "X", 1), module("b.c.mlp", "X", 1)]
    assert [node.path for node in matching(depths, "*.mlp")] == ["a.mlp"]
    assert [node.path for node in matching(depths, "**.mlp")] == ["a.mlp", "b.c.mlp"]
    assert matching(llama(2), "model.*.mlp") == []
    odd = [module("a[0]", "X", 1), module("a0", "X", 1)]
    assert [node.path for node in matching(odd, "a[0]")] == ["a[0]"]


def test_pieces_of_several_are_summed() -> None:
    found = largest(matching(llama(2), "LlamaMLP"))
    assert [(each.kernel, each.part, each.calls, each.busy_us) for each in found.work] == [
        ("gemm_128x128", "backward", 18, 720),  # 2 layers x 3 projections x 3 steps; 120 each
        ("gemm_128x64", "forward", 18, 360),
    ]
    assert found.missing_us == 2 * 30  # act_fn lists none
    assert largest([]).work == []


def test_the_table_has_exclusive_and_inclusive_times() -> None:
    modules = record(llama(2)).modules
    table = {(row.path, row.kind): row for row in rows(modules)}
    layer = table["model.layers.0", "module"]
    assert (layer.busy_us, layer.inclusive_us) == (0, 930)
    assert layer.share == pytest.approx(930 / (ALL_OF_LLAMA - 30 * 930))
    assert table["lm_head", "module"].largest == "aten::mm gemm_128x256"
    assert [row.path for row in rows(modules)] == [each.path for each in modules]
    assert work("k", 1).operator == "aten::mm"
