"""Low-rank adapters by peft: added to a model's frozen layers, left out for the reference, saved in peft's format.

Hu et al. 2021, "LoRA" (arXiv:2106.09685). Only adapters and a value head are trained then; what is published, decoded and
exported are merged weights under the family's own names (`models.adapters`).
Left out: dropout (sampling and training must agree), DoRA, quantised base weights, adapters of expert weights that are one
tensor, and starting from an adapter that was trained before: merge it into its model first.
"""

from __future__ import annotations

import copy
import difflib
import importlib
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn
from transformers.pytorch_utils import Conv1D

from partita.models.adapters import NAME, LoraConfig, adapted_layers, is_adapted, started_at_zero
from partita.models.export import whole
from partita.models.packed import PackedModel
from partita.models.parallel import full
from partita.models.quiet import quiet
from partita.ops.packing import pack
from partita.ops.ranks import ALONE, Ranks
from partita.records import Row

PEFT_INIT: dict[str, bool | str] = {"zero": True, "gaussian": "gaussian", "pissa": "pissa", "olora": "olora"}
OF_WEIGHTS = ("pissa", "olora")
LINEAR = (nn.Linear, Conv1D)


class AdapterError(ValueError):
    """Adapters cannot be added to this model, or not be taken off it; the message says why and what to do."""


class MissingPeftError(ImportError):
    """Adapters were asked for, and peft is not installed."""


def require_peft() -> Any:
    """The package. Raises MissingPeftError."""
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise MissingPeftError(
            f"adapters need peft, which cannot be imported ({error}). Install it: pip install 'partita[lora]', or leave the "
            "lora section out"
        ) from error


def add_adapters(model: PackedModel, config: LoraConfig, seed: int) -> None:
    """Freeze the language model and put an adapter, in at least float32, around every target; the value head stays as it is.

    The same seed gives the same adapters on every device, and no random state is changed. Raises AdapterError for targets
    that cannot be adapted, MissingPeftError.
    """
    if model.adapters is not None:
        raise AdapterError("this model has adapters already")
    peft, lm, paths = require_peft(), model.lm, _targets(model, config)
    made = _peft_config(peft, config, [f"lm.{path}" for path in paths])
    lm.requires_grad_(False)
    # in a holder, for of a whole model peft guesses from its type what else the names may mean
    holder = nn.ModuleDict({"lm": lm})
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would seed every device too
        peft.inject_adapter_in_model(made, holder, adapter_name=NAME)
    for layer in adapted_layers(lm):
        layer.train(layer.base_layer.training)
        for factor in (layer.lora_A, layer.lora_B):
            factor.to(torch.promote_types(layer.base_layer.weight.dtype, torch.float32))
    model.adapters = config


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """What is trained, by name: of an adapted model its adapters and its value head, of another one everything."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def base_view(model: PackedModel) -> PackedModel:
    """The policy that training started from as a model of its own over the same frozen weights: it costs no memory, and both
    may run in one step.

    Raises AdapterError for a model without adapters, and where they were taken out of the weights at the start.
    """
    _check_zero_start(model)
    same: dict[int, Any] = {id(p): p for p in model.lm.parameters()}
    # modules of its own over the same weights: of a sharded model the modules are what the weights are gathered in
    same |= {id(layer): copy.deepcopy(layer.base_layer, dict(same)) for layer in adapted_layers(model.lm)}
    view = copy.deepcopy(model, same)
    view.adapters = view.value_head = None
    return view.eval()


def export_adapter(model: PackedModel, folder: Path, ranks: Ranks = ALONE) -> None:
    """Write the adapters alone, as peft's `PeftModel.from_pretrained` and vLLM read them: `adapter_model.safetensors` and
    `adapter_config.json`; whole or not there, by rank 0 of those that call this, as `export_hf`.

    Raises AdapterError for a model without adapters, and where they were taken out of the weights at the start: they belong
    to weights that are in no other folder.
    """
    peft = require_peft()
    if model.adapters is None:
        raise AdapterError("a model without adapters has none to export; export_hf writes the whole model")
    if not started_at_zero(model.adapters):
        raise AdapterError(
            f"adapters of init={model.adapters.init} fit only the weights that they were taken out of; export the merged "
            "model, or train with init=zero"
        )
    config = _peft_config(peft, model.adapters, _short_names(model.lm))
    config.base_model_name_or_path, config.inference_mode = model.lm.name_or_path, True
    config.fan_in_fan_out = any(isinstance(layer.base_layer, Conv1D) for layer in adapted_layers(model.lm))
    _check_readable(config, model.lm)
    added = {name: p for name, p in model.lm.named_parameters() if f".{NAME}." in name}
    tensors = {
        f"base_model.model.{name.replace(f'.{NAME}.', '.')}": full(p.detach()).contiguous() for name, p in added.items()
    }
    if not ranks.leads:
        return
    with whole(folder) as part:
        save_file(tensors, part / "adapter_model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(str(part))


def _peft_config(peft: Any, config: LoraConfig, names: list[str]) -> Any:
    return peft.LoraConfig(
        task_type="CAUSAL_LM", r=config.rank, lora_alpha=config.alpha, lora_dropout=0.0, target_modules=names,
        init_lora_weights=PEFT_INIT[config.init],
    )  # fmt: skip


def _short_names(lm: nn.Module) -> list[str]:
    """The adapted layers by the ends of their paths, or by whole paths where another module ends the same."""
    paths = [path for path, module in lm.named_modules() if is_adapted(module)]
    others = {path.rpartition(".")[2] for path, module in lm.named_modules() if not is_adapted(module)}
    return sorted({path if (end := path.rpartition(".")[2]) in others else end for path in paths})


def _check_readable(config: Any, lm: nn.Module) -> None:
    """For some families with experts peft takes names of linear layers for weights of the experts."""
    read = copy.deepcopy(config)
    known = importlib.import_module("peft.utils.transformers_weight_conversion")
    known.convert_peft_config_for_transformers(read, model=lm, conversions=None)
    if read.target_parameters:
        raise AdapterError(
            f"peft would read {sorted(set(config.target_modules) - set(read.target_modules))} as weights of the experts; export "
            "the merged model, or leave these out of target_modules"
        )


def _check_zero_start(model: PackedModel) -> None:
    if model.adapters is None:
        raise AdapterError("a model without adapters has no base to go back to: all of its weights are trained")
    if not started_at_zero(model.adapters):
        raise AdapterError(
            f"with init={model.adapters.init} the model without its adapters is not the starting policy: take init=zero, or a "
            "reference of its own"
        )


def _targets(model: PackedModel, config: LoraConfig) -> list[str]:
    """Paths in `model.lm` of the layers to adapt, checked before anything is changed."""
    modules, head = dict(model.lm.named_modules()), model.lm.get_output_embeddings()
    ways = _called(model) | ({head} if head is not None else set())
    linear = [path for path, module in modules.items() if isinstance(module, LINEAR)]
    if config.target_modules == "all-linear":
        chosen = [path for path in linear if modules[path] is not head and modules[path] in ways]
    else:
        chosen = sorted({path for name in config.target_modules for path in _matches(name, modules, linear)})
    if not chosen:
        raise AdapterError(f"target_modules={config.target_modules} names no layer of {type(model.lm).__name__}")
    for path in chosen:
        if reason := _unfit(modules[path], model.lm, ways, config):
            raise AdapterError(f"target_modules: {path} {reason}")
    return chosen


def _unfit(module: nn.Module, lm: Any, ways: Set[nn.Module], config: LoraConfig) -> str:
    """Why a layer cannot be adapted; empty where it can."""
    if not isinstance(module, LINEAR):
        return f"is {type(module).__name__}, and adapters are for linear layers only"
    if module.weight is lm.get_input_embeddings().weight:
        return "shares its weight with the embedding; leave it out"
    if module not in ways:
        return "is read by its family past the layer, which would not see the adapter; leave it out"
    most = min(module.weight.shape)
    if config.init in OF_WEIGHTS and config.rank > most:
        return f"has {most} directions, fewer than rank={config.rank}: init={config.init} cannot take so many out of it"
    return ""


@torch.no_grad()
def _called(model: PackedModel) -> set[nn.Module]:
    """The linear layers that run as layers, in training and in scoring: some families hand weights to kernels instead."""
    row = Row([0, 1, 2, 3], [False, True, True, True], [0.0] * 4, [0] * 4)
    runs, training = list[set[nn.Module]](), model.training
    for mode in (True, False):
        seen = set[nn.Module]()
        linear = [module for module in model.lm.modules() if isinstance(module, LINEAR)]
        hooks = [module.register_forward_hook(lambda module, *_, seen=seen: seen.add(module)) for module in linear]
        try:
            run = model.train(mode)
            if model.lm.get_output_embeddings() is None:  # a scorer has no other head than its own
                run.values(pack([[row]], [0]))
            else:
                run(pack([[row]], [0]), temperature=1.0)
        finally:
            model.train(training)
            for hook in hooks:
                hook.remove()
        runs.append(seen)
    return set.intersection(*runs)


def _matches(name: str, modules: Mapping[str, nn.Module], linear: Sequence[str]) -> list[str]:
    """Paths that end with a name."""
    found = [path for path in modules if path == name or path.endswith(f".{name}")]
    if not found:
        known = sorted({path.rpartition(".")[2] for path in linear})
        near = difflib.get_close_matches(name, known, 1)
        raise AdapterError(
            f"target_modules: no layer is named {name!r}. {f'Near: {near[0]}. ' if near else ''}Linear layers here: "
            f"{', '.join(known)}"
        )
    return found
