"""What mtvllm.py imports of vLLM, in its place: an engine's base class and the factory, with the calls that vLLM 0.33's
worker makes of an engine; a model that keeps what is loaded, and only between begin and end of a reload."""
import sys
import types
from typing import Generic, TypeVar

I, U = TypeVar("I"), TypeVar("U")
ENGINES = {}


class Model:
    def __init__(self):
        self.open, self.tensors = False, None

    def load_weights(self, weights):
        assert self.open and not self.tensors
        self.tensors = {}
        for name, t in weights:
            assert name not in self.tensors
            self.tensors[name] = t.clone()


class Engine(Generic[I, U]):
    def __init__(self, config, vllm_config, device, model):
        self.model, self.model_config = model, None

    def update_weights(self, update_info):
        self.receive_weights(self.update_info_cls(**update_info))


def initialize(model):
    assert not model.open
    model.open, model.tensors = True, None


def finalize(model, config):
    assert model.open and model.tensors
    model.open = False


def module(name, **names):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(names)


for package in "", ".distributed", ".distributed.weight_transfer", ".model_executor", ".model_executor.model_loader":
    module("vllm" + package)
module("vllm.distributed.weight_transfer.base", WeightTransferEngine=Engine, WeightTransferInitInfo=object,
       WeightTransferUpdateInfo=object)
module("vllm.distributed.weight_transfer.factory",
       WeightTransferEngineFactory=types.SimpleNamespace(register_engine=ENGINES.__setitem__))
module("vllm.model_executor.model_loader.reload", initialize_layerwise_reload=initialize,
       finalize_layerwise_reload=finalize)


class Worker:
    """The calls of gpu_worker.py"""

    def __init__(self, run):
        import mtvllm
        mtvllm.register()
        self.model = Model()
        self.engine = ENGINES["mt"]("config", "vllm_config", "cpu", self.model)
        self.engine.init_transfer_engine(self.engine.init_info_cls(run=run))

    def update(self, **info):
        self.engine.start_weight_update()
        self.engine.update_weights(info)
        self.engine.finish_weight_update()
        return self.model.tensors
