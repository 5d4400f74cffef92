"""An engine of vLLM's weight transfer: vLLM takes the weights of a run that trains on the same machine. vLLM 0.33.

    # in each process of vLLM: an entry point "mtvllm:register" in the group vllm.general_plugins does that
    mtvllm.register()
    llm = LLM(model=DIR, weight_transfer_config=WeightTransferConfig(backend="mt"))
    llm.init_weight_transfer_engine(WeightTransferInitRequest({"run": "RUN"}))
    # whenever the rollouts shall be of newer weights:
    llm.start_weight_update()
    llm.update_weights(WeightTransferUpdateRequest({"after": 41}))     # waits for step 42, or takes a later one
    llm.finish_weight_update()

A model on several GPUs has a worker for each, which all must take the same step: {"step": 42}. If a worker has been
overtaken, it loads nothing and raises Overtaken: update again, with a newer step. A training that waits for its
rollouts overtakes nobody. A worker copies the step before it loads it, since vLLM cannot load a part of a model
again."""
from dataclasses import dataclass
from typing import Optional

from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from mtweights import Overtaken, Weights, tensor


@dataclass
class MtInitInfo(WeightTransferInitInfo):
    run: str


@dataclass
class MtUpdateInfo(WeightTransferUpdateInfo):
    after: int = -1
    step: Optional[int] = None


class MtWeightTransferEngine(WeightTransferEngine[MtInitInfo, MtUpdateInfo]):
    init_info_cls, update_info_cls = MtInitInfo, MtUpdateInfo

    def init_transfer_engine(self, init_info):
        self.weights = Weights(init_info.run)

    def start_weight_update(self):
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info):
        wanted = update_info.step
        self.weights.wait(update_info.after if wanted is None else wanted - 1)
        tensors = self.weights.read()
        if wanted not in (None, self.weights.step):
            raise Overtaken("step %d is not the newest any more: %d is" % (wanted, self.weights.step))
        self.model.load_weights((name, tensor(*t)) for name, t in tensors.items())

    def finish_weight_update(self):
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self):
        pass


def register():
    WeightTransferEngineFactory.register_engine("mt", MtWeightTransferEngine)
