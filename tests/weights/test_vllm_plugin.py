"""What an update must hold: every parameter of the text model, and none of a tower."""

from torch import nn

from agrpo.weights.vllm_plugin import ParameterNames


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight


class Seeing(nn.Module):
    supports_multimodal = True

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Linear(2, 2)
        self.language_model = Text()

    def get_language_model(self) -> nn.Module:
        return self.language_model


def test_a_model_for_text_needs_everything() -> None:
    assert ParameterNames.of(Text()) == ParameterNames(frozenset({"embed.weight"}), frozenset({"head.weight"}))


def test_a_tower_is_not_part_of_an_update() -> None:
    names = ParameterNames.of(Seeing())
    assert names.own == {"language_model.embed.weight"} and names.tied == {"language_model.head.weight"}
