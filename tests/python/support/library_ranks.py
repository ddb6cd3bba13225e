"""A rank of a training by somebody else's library: ``library_ranks.py LIBRARY BACKEND FOLDER``.

The rank writes what it has trained to FOLDER/RANK.pt, and its process group to FOLDER/RANK.txt. The lines that name the
backend are those of docs/frameworks/libraries.md. Nothing of a2a is imported: torch and the libraries know the name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

STEPS = 3


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 2))


def samples() -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(8), torch.randn(2)) for _ in range(4 * 4 * STEPS)]


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """Other numbers on every rank."""
    torch.manual_seed(1000 * step + rank)
    return torch.randn(4, 8), torch.randn(4, 2)


def train(model: Any, optimizer: Any, backward: Callable[[Tensor], None] = Tensor.backward) -> None:
    for step in range(STEPS):
        x, y = batch(step, dist.get_rank())
        optimizer.zero_grad()
        backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def accelerate(backend: str, _: Path) -> nn.Module:
    import accelerate
    from accelerate.utils import InitProcessGroupKwargs

    accelerator = accelerate.Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend=backend)])
    assert accelerator.state.backend == backend
    net = network()
    model, optimizer = accelerator.prepare(net, adam(net))
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    train(model, optimizer, accelerator.backward)
    gathered = accelerator.gather(torch.full((2,), float(accelerator.process_index)))
    assert gathered.tolist() == [float(rank) for rank in range(dist.get_world_size()) for _ in range(2)]
    return net


def transformers(backend: str, folder: Path) -> nn.Module:
    from transformers import Trainer, TrainingArguments

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
            y = self.net(x)
            return {"loss": nn.functional.mse_loss(y, labels), "logits": y}

    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"),
        use_cpu=backend != "a2a",  # that name needs no hint
        ddp_backend=backend,
        per_device_train_batch_size=4,
        max_steps=STEPS,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = Model()
    data: Any = [{"x": x, "labels": y} for x, y in samples()]
    trainer = Trainer(model=model, args=arguments, train_dataset=data)
    trainer.train()
    assert isinstance(trainer.model_wrapped, nn.parallel.DistributedDataParallel)
    return model.net


def lightning(backend: str, folder: Path) -> nn.Module:
    import lightning
    from lightning.fabric.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, pair: Any, _: int) -> Tensor:
            loss = nn.functional.mse_loss(self.net(pair[0]), pair[1])
            self.log("loss", loss, sync_dist=True)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adam(self)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=int(os.environ["WORLD_SIZE"]),
        strategy=DDPStrategy(process_group_backend=backend),
        plugins=[LightningEnvironment()],  # otherwise it imports mpi4py, and fails where that finds no MPI
        max_steps=STEPS,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    module = Module()
    trainer.fit(module, torch.utils.data.DataLoader(samples(), batch_size=4))  # type: ignore[arg-type]
    return module.net


def deepspeed(backend: str, _: Path) -> nn.Module:
    """ZeRO of stage 3: parameters are gathered where they are used, and gradients reduced and scattered."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    deepspeed.init_distributed(dist_backend=backend)
    net = network()
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
    }
    engine, *_ = deepspeed.initialize(model=net, optimizer=adam(net), config=config, dist_init_required=False)
    for step in range(STEPS):
        x, y = batch(step, dist.get_rank())
        engine.backward(nn.functional.mse_loss(engine(x), y))
        engine.step()
    with deepspeed.zero.GatheredParameters(list(net.parameters())):
        whole = network()
        whole.load_state_dict({name: value.detach().clone() for name, value in net.state_dict().items()})
    return whole


def ignite(backend: str, _: Path) -> nn.Module:
    import ignite.distributed as idist

    idist.initialize(backend)
    model = idist.auto_model(network())
    assert isinstance(model, nn.parallel.DistributedDataParallel)
    train(model, idist.auto_optim(adam(model)))
    assert float(idist.all_reduce(float(idist.get_rank()))) == sum(range(idist.get_world_size()))
    return model.module


def megatron(backend: str, _: Path) -> nn.Module:
    """Tensor parallel layers. The parts of the ranks are put together at the end."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.model_parallel_config import ModelParallelConfig

    dist.init_process_group(backend)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=dist.get_world_size())
    config = ModelParallelConfig(tensor_model_parallel_size=dist.get_world_size(), use_cpu_initialization=True)
    options: Any = {"config": config, "init_method": nn.init.xavier_normal_, "bias": True, "skip_bias_add": False}

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.column = tensor_parallel.ColumnParallelLinear(8, 16, gather_output=False, **options)
            self.row = tensor_parallel.RowParallelLinear(16, 2, input_is_parallel=True, **options)

        def forward(self, x: Tensor) -> Tensor:
            return self.row(torch.tanh(self.column(x)[0]))[0]  # type: ignore[no-any-return]

    model = Model()
    optimizer = adam(model)
    for step in range(STEPS):
        x, y = batch(step, 0)  # the ranks share the model, not the data
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def ray(backend: str, folder: Path, workers: int) -> None:
    """Ray starts the ranks."""
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer, prepare_model

    def loop(_: dict[str, Any]) -> None:
        model: Any = prepare_model(network())
        assert isinstance(model, nn.parallel.DistributedDataParallel)
        train(model, adam(model))
        save(model.module, folder)

    ray.init(num_cpus=workers + 1, include_dashboard=False)
    TorchTrainer(
        loop,
        torch_config=TorchConfig(backend=backend),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(storage_path=str(folder / "ray")),
    ).fit()


def save(trained: nn.Module, folder: Path) -> None:
    tensors = {name: value.detach().clone() for name, value in trained.named_parameters()}
    torch.save(tensors, folder / f"{dist.get_rank()}.pt")
    assert dist.group.WORLD is not None
    (folder / f"{dist.get_rank()}.txt").write_text(dist.group.WORLD.name())


def main(library: str, backend: str, folder: Path) -> None:
    if library == "ray":
        return ray(backend, folder, 2)
    save(globals()[library](backend, folder), folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
