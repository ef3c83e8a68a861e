"""The training job of a row of tests/data/measured_runs.tsv: ``measured_job.py --help`` has the arguments.

Written from the authors' description: four steps with a learning rate of 0.001, all else by default. Weights are random
and never filled in, as no value decides what is allocated. A convolutional net gets images of 86 by 86; a language
model gets lines of 128 tokens, all but the first of them padded, as lines of WikiText differ in length.
"""

import argparse

import torch
from torch import nn

STEPS = 4
TOKENS = 128
GPT2_OF_CEREBRAS = {
    "n_layer": 10,
    "n_positions": 2048,
    "n_inner": 3072,
    "activation_function": "gelu",
    "attn_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "resid_pdrop": 0.0,
}
OPT_350M = {
    "hidden_size": 1024,
    "ffn_dim": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "word_embed_proj_dim": 512,
    "do_layer_norm_before": False,
}
GPT_NEO = {
    "hidden_size": 768,
    "num_layers": 12,
    "num_heads": 12,
    "attention_types": [[["global", "local"], 6]],
}
QWEN3_4B = {
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
QWEN2_1_5B = {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
}
LLAMA_3B = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
T5_SMALL = {"decoder_start_token_id": 0}
T5_BASE = T5_SMALL | {"d_model": 768, "d_ff": 3072, "num_layers": 12, "num_heads": 12}
CONFIGS = {
    "openai-community/gpt2": ("gpt2", {}),
    "distilbert/distilgpt2": ("gpt2", {"n_layer": 6}),
    "cerebras/Cerebras-GPT-111M": ("gpt2", GPT2_OF_CEREBRAS),
    "EleutherAI/gpt-neo-125M": ("gpt_neo", GPT_NEO),
    "facebook/opt-125m": ("opt", {}),
    "facebook/opt-350m": ("opt", OPT_350M),
    "T5-small": ("t5", T5_SMALL),
    "t5-base": ("t5", T5_BASE),
    "Qwen/Qwen3-4B": ("qwen3", QWEN3_4B),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": ("qwen2", QWEN2_1_5B),
    "google/gemma-2-2b-it": ("gemma2", {}),
    "meta-llama/Llama-3.2-3B-Instruct": ("llama", LLAMA_3B),
}
NETS = {
    "ConvNeXtBase": "convnext_base",
    "ConvNeXtTiny": "convnext_tiny",
    "MnasNet": "mnasnet1_0",
    "MobeNetV3Large": "mobilenet_v3_large",
    "MobeNetV3Small": "mobilenet_v3_small",
    "MobileNetV2": "mobilenet_v2",
    "RegNetX400MF": "regnet_x_400mf",
    "RegNetY400MF": "regnet_y_400mf",
    "ResNet101": "resnet101",
    "ResNet152": "resnet152",
    "VGG16": "vgg16",
    "VGG19": "vgg19",
}
"""What the authors call a net, and what torchvision does."""
TEN_CLASSES = "MnasNet", "MobeNetV3Large", "MobeNetV3Small"


def language_model(name):
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    from transformers.modeling_utils import no_init_weights

    kind, figures = CONFIGS[name]
    config = AutoConfig.for_model(kind, **figures)
    of_its_kind = AutoModelForSeq2SeqLM if kind == "t5" else AutoModelForCausalLM
    with no_init_weights():
        model = of_its_kind.from_config(config)
    model.tie_weights()  # which weights that are not filled in do not get by themselves
    return model


def convolutional_net(name):
    from torchvision import models
    from transformers.modeling_utils import no_init_weights

    classes = 10 if name in TEN_CLASSES else 1000
    with no_init_weights():
        return getattr(models, NETS[name])(num_classes=classes)


def lines(model, batch):
    tokens = torch.randint(model.config.vocab_size, (batch, TOKENS))
    mask = torch.ones_like(tokens)
    mask[1:, TOKENS // 2 :] = 0
    return {
        "input_ids": tokens,
        "attention_mask": mask,
        "labels": tokens.masked_fill(mask == 0, -100),
    }


def prepared(optimizer_name, parameters):
    optimizer = getattr(torch.optim, optimizer_name)(parameters, lr=0.001)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, step_size=7, gamma=0.1)


def train_language_model(job):
    model = language_model(job.model)
    model.train()
    optimizer, scheduler = prepared(job.optimizer, model.parameters())
    model.to("cuda")
    for _ in range(STEPS):
        if job.zero_grad == 0:
            optimizer.zero_grad()
        batch = {name: part.to("cuda") for name, part in lines(model, job.batch).items()}
        outputs = model(**batch)
        if job.zero_grad == 1:
            optimizer.zero_grad()
        loss = outputs.loss
        loss.backward()
        optimizer.step()
        if job.zero_grad == 2:
            optimizer.zero_grad()
        scheduler.step()


def train_net(job):
    model = convolutional_net(job.model)
    model.to("cuda")
    model.train()
    optimizer, scheduler = prepared(job.optimizer, model.parameters())
    criterion = nn.CrossEntropyLoss()
    for _ in range(STEPS):
        if job.zero_grad == 0:
            optimizer.zero_grad()
        images = torch.empty(job.batch, 3, 86, 86).to("cuda")
        labels = torch.randint(10, (job.batch,)).to("cuda")
        outputs = model(images)
        loss = criterion(outputs, labels)
        if job.zero_grad == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _, guesses = torch.max(outputs, 1)
        if job.zero_grad == 2:
            optimizer.zero_grad()
        scheduler.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*CONFIGS, *NETS], required=True)
    parser.add_argument("--optimizer", required=True)
    parser.add_argument("--batch", type=int, required=True)
    when = "when gradients go: 0 before the batch is loaded, 1 before backward, 2 after the step"
    parser.add_argument("--zero-grad", type=int, choices=(0, 1, 2), default=0, help=when)
    job = parser.parse_args()
    train = train_net if job.model in NETS else train_language_model
    train(job)


if __name__ == "__main__":
    main()
