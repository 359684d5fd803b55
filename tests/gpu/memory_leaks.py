# SPDX-License-Identifier: Apache-2.0
"""Eight ways to leak GPU memory in PyTorch, each with its fixed twin. Usage: memory_leaks.py PATTERN leaky|fixed OUT.json

The line that gpuwhy must name has the comment `LEAK pattern`. OUT.json gets the job's own figures: memory_allocated()
after every step.
"""
import json
import os
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

STEPS = int(os.environ.get("LEAK_STEPS", 120))
BATCH, WIDTH = 2048, 1024
pattern, leaky, out = sys.argv[1], sys.argv[2] == "leaky", sys.argv[3]
device = torch.device("cuda")
torch.manual_seed(1)
after_step = []


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, 16)

    def forward(self, x):
        x = torch.relu(self.first(x))
        x = self.second(x)  # LEAK hook
        return self.last(torch.relu(x))


def sequence():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 256)).to(device)


def batch():
    return torch.randn(BATCH, WIDTH, device=device), torch.randint(16, (BATCH,), device=device)


def end_of_step():
    torch.cuda.synchronize()
    after_step.append(torch.cuda.memory_allocated())
    if len(after_step) == 100:
        open(out + ".started", "w").close()
    time.sleep(0.005)


def train(model, optimizer, each_step=lambda output, loss: None):
    """Ordinary training. The leak, if any, is in `each_step`."""
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad(set_to_none=True)
        output = model(x)
        loss = F.cross_entropy(output, y)
        loss.backward()
        optimizer.step()
        each_step(output, loss)
        end_of_step()


def kept_in_list():
    model, kept = Net().to(device), []

    def keep(output, loss):
        if leaky:
            kept.append(output.detach().clone())  # LEAK list
        else:
            kept.append(output.detach().mean().item())

    train(model, torch.optim.SGD(model.parameters(), lr=1e-3), keep)


def loss_summed():
    model, total = Net().to(device), 0.0
    for _ in range(STEPS):
        x, y = batch()
        if leaky:
            total = total + F.mse_loss(x @ model.first.weight.T, x).sqrt()  # LEAK loss
        else:
            total = total + F.mse_loss(x @ model.first.weight.T, x).sqrt().item()
        end_of_step()


def hook():
    model, stored = Net().to(device), []

    def store(module, inputs, output):
        if leaky:
            stored.append(output)
        else:
            stored[:] = [output.detach().mean().item()]

    model.second.register_forward_hook(store)
    train(model, torch.optim.SGD(model.parameters(), lr=1e-3))


def fresh_state():
    model, optimizers = Net().to(device), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        x, y = batch()
        if leaky:  # a new optimizer each time, and no zero_grad
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
            optimizers.append(optimizer)
        else:
            optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()  # LEAK state
        end_of_step()


def autocast_cache():
    base = torch.randn(WIDTH, WIDTH, device=device)

    def step():
        weight = base.detach().clone().requires_grad_()
        x, _ = batch()
        F.linear(x, weight).float().pow(2).mean()  # LEAK autocast

    if leaky:  # what was cast is kept until the outermost context ends
        with torch.autocast("cuda", dtype=torch.bfloat16):
            for _ in range(STEPS):
                step()
                end_of_step()
    else:
        for _ in range(STEPS):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                step()
            end_of_step()


def validation():
    model, outputs = sequence(), []
    for _ in range(STEPS):
        x, _ = batch()
        with torch.no_grad():
            if leaky:
                outputs.append(model(x))  # LEAK validation
            else:
                outputs.append(model(x).argmax(1).float().mean().item())
        end_of_step()


def optimizer_each_epoch():
    model, schedulers = Net().to(device), []
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        if leaky and step % 5 == 0:  # an epoch has five steps; the old optimizer lives on in its scheduler
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
            schedulers.append(torch.optim.lr_scheduler.StepLR(optimizer, 10))
        x, y = batch()
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()  # LEAK epoch
        end_of_step()


def graph_kept():
    model, probe, losses = sequence(), nn.Linear(256, 256).to(device), []

    def keep(output, loss):
        if leaky:
            losses.append(probe(output.detach()).pow(2).mean())  # LEAK graph
        else:
            losses.append(probe(output.detach()).pow(2).mean().item())

    train(model, torch.optim.SGD(model.parameters(), lr=1e-3), keep)


PATTERNS = {
    "list": kept_in_list,
    "loss": loss_summed,
    "hook": hook,
    "state": fresh_state,
    "autocast": autocast_cache,
    "validation": validation,
    "epoch": optimizer_each_epoch,
    "graph": graph_kept,
}

if __name__ == "__main__":
    PATTERNS[pattern]()
    said = {
        "pattern": pattern,
        "leaky": leaky,
        "after_step": after_step,
        "peak": torch.cuda.max_memory_allocated(),
        "peak_reserved": torch.cuda.max_memory_reserved(),
    }
    with open(out, "w") as file:
        json.dump(said, file)
