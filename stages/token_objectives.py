"""The losses of the baselines as modules, beside that of the flow in ``elf.stages.objectives``."""

from torch import Tensor

from elf.stages.model.autoregressive import next_token_loss
from elf.stages.model.config import ObjectiveConfig
from elf.stages.model.masked import masked_loss
from elf.stages.model.masks import loss_mask
from elf.stages.model.objective import Batch, Loss
from elf.stages.model.token_draws import MaskDraws, TokenDraws
from elf.stages.model.token_network import TokenNetwork
from elf.stages.objectives import Goal
from elf.stages.token_tally import BoundNats, ExactNats


class NextToken(Goal):
    """Each token from those before it: the exact NLL."""

    tally = ExactNats

    def __init__(self, network: TokenNetwork, config: ObjectiveConfig, precision: str) -> None:
        super().__init__(config, precision)
        self.network = network

    def measure(self, batch: Batch, draws: TokenDraws, row_multiple: int) -> Loss:
        """As ``forward``, in whatever precision is on."""
        return next_token_loss(self.network, batch.ids_BL, self._counted(batch), draws)

    def _counted(self, batch: Batch) -> Tensor:
        """(B, L) bool: what a row's loss is over."""
        length = batch.ids_BL.shape[1]
        return loss_mask(batch.condition_length_B, batch.length_B, length, self.config.padding)


class Unmasking(NextToken):
    """Masked tokens from those that are left: a bound of the NLL."""

    tally = BoundNats

    def measure(self, batch: Batch, draws: TokenDraws, row_multiple: int) -> Loss:
        """As ``forward``, in whatever precision is on."""
        assert isinstance(draws, MaskDraws)
        counted_BL = self._counted(batch)
        return masked_loss(self.network, batch.ids_BL, batch.condition_length_B, counted_BL, draws)
