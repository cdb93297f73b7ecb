from quire.lora.request import LoRARequest

__all__ = ["LoRARequest"]
