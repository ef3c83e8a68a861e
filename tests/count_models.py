"""Counts what the configs in data/models.json hold: ``PYTHON tests/count_models.py``, which writes the file anew.

PYTHON has transformers. It builds each language model on torch's meta device, so nothing is
downloaded and no weight takes memory. Weights that two modules share count once.
"""

import json
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel, __version__
from transformers.initialization import no_init_weights

FILE = Path(__file__).parent / "data" / "models.json"
META = torch.device("meta")


def language_model(config: dict) -> PreTrainedModel:
    """The model of a config, or of its part that reads text."""
    text = config.get("llm_config", config)  # of InternVL's own code
    kind = CONFIG_MAPPING[text["model_type"]]
    with META, no_init_weights():
        model = AutoModelForCausalLM.from_config(kind.from_dict(dict(text)).get_text_config())
    model.tie_weights()
    return model


def main() -> None:
    content = json.loads(FILE.read_text())
    content["source"] = f"transformers {__version__}, tests/count_models.py"
    rows = []
    for row in content["models"]:
        weights = language_model(row["config"]).parameters()
        row["parameters"] = sum(weight.numel() for weight in weights)
        rows.append(json.dumps(row))
    source = json.dumps(content["source"])
    FILE.write_text(f'{{"source": {source}, "models": [\n' + ",\n".join(rows) + "\n]}\n")


if __name__ == "__main__":
    main()
