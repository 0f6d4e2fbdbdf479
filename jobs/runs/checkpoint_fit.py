"""Whether a checkpoint from outside is one of the recipe's model: found out from its records and headers, before any work.

No torch here: the driver asks while it plans, and the workers ask again of what they read.
"""

from __future__ import annotations

from typing import Any

from curriculum.errors import InputError, RecipeError
from curriculum.identity import difference
from curriculum.load import plain
from curriculum.model_spec import ModelSpec
from ncp_model.hf_config import parse_config, spec_of_config
from ncp_model.hf_headers import check_tensors, read_headers
from ncp_model.hf_names import bindings_of
from pipeline.data.objects import list_objects
from pipeline.storage import Storage

FREE = (
    "max_sequence_length",
    "z_loss",
    "fusion_alpha_init",
    "ncp.",
    "vq.",
    "init.",
    "concept.codebook_init",
    "irc.decoder_static_init",
    "crc.diag_init",
    "crc.final_diag_init",
)
"""What may differ between a checkpoint's model and the recipe's: losses and initial values, which no tensor holds."""


class WrongCheckpoint(InputError):
    """A checkpoint that is not the pinned one, or not of the recipe's model. Names what differs."""


def model_of_folder(name: str, root: Storage) -> dict[str, Any]:
    """The model of a folder of safetensors, of which everything but the numbers was checked: config, index, headers.

    Raises RecipeError that names the file, and the field or the tensor.
    """
    sizes = {path: file.size for path, file in list_objects(root).items() if "/" not in path}
    try:
        config = parse_config(root.uri("config.json"), root.read_bytes("config.json"))
        try:
            spec = spec_of_config(config)
        except InputError as error:
            raise RecipeError(f"{root.uri('config.json')}: {error}") from error
        entries = read_headers(root.url, sizes, root.read_range)
        check_tensors(root.url, entries, spec, bindings_of(spec), release=spec.concept.enabled)
    except InputError as error:
        raise RecipeError(f"init.from {name}: {error}") from error
    return plain(spec)


def check_model(name: str, theirs: Any, spec: ModelSpec) -> None:
    """Raise WrongCheckpoint that names every field in which the checkpoint's model is not the recipe's."""
    differing = [
        f"model.{key} is {old!r} there and {new!r} in the recipe"
        for key, old, new in difference(theirs, plain(spec))
        if not key.startswith(FREE)
    ]
    if differing:
        raise WrongCheckpoint(f"init.from {name}: another model: {'; '.join(differing)}")
