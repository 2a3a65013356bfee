import shutil
from pathlib import Path

from run_folder import RunFolder, key_of

from elf.cache.manifest import Manifest
from elf.pipeline.descriptions import keep_description
from elf.stages import lineage


def test_every_artifact_comes_after_its_inputs_once(tmp_path: Path):
    folder = RunFolder(tmp_path / "store")
    nodes = lineage.trace(folder.inputs)
    keys = [node.key for node in nodes]
    assert len(keys) == len(set(keys))
    assert set(keys) == {key_of(name) for name in ("text", "tokens", "latents", "train")}
    for place, node in enumerate(nodes):
        assert all(keys.index(key) < place for key in node.inputs)
    assert [node.name for node in nodes] == ["fetch · documents", "tokens", "latents", "train"]
    assert nodes[0].origin == "pypi:prose==1.0#text"
    assert nodes[3].origin == "latents, tokens"
    assert nodes[0].seconds == 8.25


def test_artifacts_go_by_the_names_of_the_run_s_steps(tmp_path: Path):
    folder = RunFolder(tmp_path / "store")
    steps = {key_of("text"): "fetch-train"}
    assert lineage.trace(folder.inputs, steps)[0].name == "fetch-train"
    shutil.rmtree(tmp_path / "store" / "fetch" / key_of("text"))
    assert lineage.trace(folder.inputs, steps)[0].name == "fetch-train (not in this store)"


def test_time_is_that_of_all_stages_that_ran(tmp_path: Path):
    nodes = lineage.trace(RunFolder(tmp_path / "store").inputs)
    assert lineage.time_of(nodes) == 8.25 + 6 + 95 + 3700


def test_what_has_left_the_store_is_named_by_its_key(tmp_path: Path):
    folder = RunFolder(tmp_path / "store")
    shutil.rmtree(tmp_path / "store" / "fetch" / key_of("text"))
    gone = lineage.trace(folder.inputs)[0]
    assert gone.name == "documents (not in this store)"
    assert gone.short_key == key_of("text")[:12]
    assert gone.seconds is None


def test_what_was_never_stored_is_described_where_it_was_used(tmp_path: Path):
    folder = RunFolder(tmp_path / "store")
    stored = tmp_path / "store" / "encode" / key_of("latents")
    manifest = Manifest.from_json((stored / "manifest.json").read_bytes())
    keep_description(tmp_path / "store" / "train" / key_of("train"), "latents", manifest)
    shutil.rmtree(stored)
    inputs = {role: artifact for role, artifact in folder.inputs.items() if role == "train"}
    nodes = {node.name: node for node in lineage.trace(inputs)}
    described = nodes["encode · latents (never stored)"]
    assert described.inputs == tuple(manifest.inputs.values())
    assert described.seconds is None
    assert "tokenize · tokens" in nodes


def test_there_is_an_arc_for_every_input(tmp_path: Path):
    nodes = lineage.trace(RunFolder(tmp_path / "store").inputs)
    drawn = lineage.arcs(nodes)
    assert len(drawn) == sum(len(node.inputs) for node in nodes)
    assert all(arc.start < arc.end for arc in drawn)
