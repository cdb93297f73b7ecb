"""Small checkpoints (safetensors, no tokenizer) served by token ids, against the records beside them: one or more of
every family."""

import json
import math
import unittest

import harness

MARGIN = 0.01
LOGPROB_TOLERANCE = 1e-3
LOGIT_TOLERANCE = 2e-3


def log_softmax(logits):
    top = max(logits)
    total = math.log(sum(math.exp(logit - top) for logit in logits)) + top
    return [logit - total for logit in logits]


class Tiny:
    """The tests of one checkpoint; the classes below say which."""

    arguments = ("--skip-tokenizer-init",)
    name = ""
    folder = "tiny"

    @classmethod
    def setUpClass(cls):
        cls.model = harness.DATA / "e2e" / cls.folder / cls.name
        cls.record = json.loads((cls.model / "golden.json").read_text())
        super().setUpClass()

    def complete(self, prompt, **parameters):
        return self.server.answer("/v1/completions", {
            "prompt": prompt, "temperature": 0, "return_token_ids": True, "return_tokens_as_token_ids": True,
            **parameters})

    def test_prompts_are_scored_as_recorded(self):
        for case in self.record["cases"]:
            with self.subTest(tokens=len(case["prompt"])):
                choice = self.complete(case["prompt"], max_tokens=1, prompt_logprobs=0)["choices"][0]
                self.assertEqual(choice["prompt_token_ids"], case["prompt"])
                entries = choice["prompt_logprobs"]
                self.assertEqual(len(entries), len(case["prompt"]))
                for entry, token, expected in zip(entries[1:], case["prompt"][1:], case["logprob_of_prompt"], strict=True):
                    self.assertAlmostEqual(entry[str(token)]["logprob"], expected, delta=LOGPROB_TOLERANCE)

    def test_the_best_tokens_after_a_prompt_have_the_recorded_logits(self):
        for case in self.record["cases"]:
            with self.subTest(tokens=len(case["prompt"])):
                choice = self.complete(case["prompt"], max_tokens=1, logprobs=20)["choices"][0]
                top = choice["logprobs"]["top_logprobs"][0]
                self.assertGreaterEqual(len(top), 20)
                expected = log_softmax(case["last_logits"])
                for token, logprob in top.items():
                    self.assertAlmostEqual(logprob, expected[int(token.removeprefix("token_id:"))],
                                           delta=LOGIT_TOLERANCE)

    def test_answers_are_the_recorded_ones(self):
        for case in self.record["cases"]:
            with self.subTest(tokens=len(case["prompt"])):
                choice = self.complete(case["prompt"], max_tokens=len(case["greedy"]), ignore_eos=True)["choices"][0]
                steps = harness.steps_to_compare(case["greedy_margin"], MARGIN)
                self.assertEqual(len(choice["token_ids"]), len(case["greedy"]))
                self.assertEqual(choice["token_ids"][:steps], case["greedy"][:steps])

    def test_text_cannot_be_asked_of_a_server_without_a_tokenizer(self):
        reply = self.server.post("/v1/completions", {"prompt": "text", "max_tokens": 1})
        self.assertEqual(reply.status, 400)
        self.assertIn("message", reply.json["error"])


class Llama(Tiny, harness.ServerTest):
    name = "llama"


class LlamaRopeLlama3(Tiny, harness.ServerTest):
    name = "llama3_rope"


class LlamaRopeLinear(Tiny, harness.ServerTest):
    name = "llama_linear"


class LlamaRopeYarn(Tiny, harness.ServerTest):
    name = "llama_yarn"


class MistralSlidingWindow(Tiny, harness.ServerTest):
    """Blocks behind the window are given back while the answer grows."""

    name = "mistral_swa"


class Mixtral(Tiny, harness.ServerTest):
    name = "mixtral"


class Qwen2Moe(Tiny, harness.ServerTest):
    """Normalises nothing; an expert that all tokens take, with a gate."""

    name = "qwen2_moe"


class Qwen3Moe(Tiny, harness.ServerTest):
    name = "qwen3_moe"


class DeepseekV2(Tiny, harness.ServerTest):
    """Latent attention: the cache holds keys alone."""

    name = "deepseek_v2"


class DeepseekV3(Tiny, harness.ServerTest):
    """The best groups of experts by sigmoids and a bias."""

    name = "deepseek_v3"


class GptOss(Tiny, harness.ServerTest):
    """Sinks, alternating windows, stacks of transposed experts with biases."""

    name = "gpt_oss"


class Qwen2(Tiny, harness.ServerTest):
    name = "qwen2"


class Qwen3(Tiny, harness.ServerTest):
    name = "qwen3"


class Olmo2(Tiny, harness.ServerTest):
    name = "olmo2"


class Granite(Tiny, harness.ServerTest):
    name = "granite"


class Phi3(Tiny, harness.ServerTest):
    name = "phi3"


class Glm4(Tiny, harness.ServerTest):
    name = "glm4"


class Gemma2(Tiny, harness.ServerTest):
    """Blocks of the layers with a window are given back, those of the others stay."""

    name = "gemma2"


class Gemma3(Tiny, harness.ServerTest):
    name = "gemma3"


class Gpt2(Tiny, harness.ServerTest):
    name = "gpt2"


class Opt(Tiny, harness.ServerTest):
    name = "opt"


class Gemma(Tiny, harness.ServerTest):
    name = "gemma"


class Olmo3(Tiny, harness.ServerTest):
    """A rope that is stretched for some layers alone."""

    name = "olmo3"


class Olmoe(Tiny, harness.ServerTest):
    name = "olmoe"


class SmolLm3(Tiny, harness.ServerTest):
    """A layer that sees no positions."""

    name = "smollm3"


class SeedOss(Tiny, harness.ServerTest):
    name = "seed_oss"


class Ernie45(Tiny, harness.ServerTest):
    name = "ernie4_5"


class Exaone4(Tiny, harness.ServerTest):
    """Layers with windows and positions, and one with neither."""

    name = "exaone4"


class Ministral(Tiny, harness.ServerTest):
    name = "ministral"


class Glm4Moe(Tiny, harness.ServerTest):
    name = "glm4_moe"


class Dots1(Tiny, harness.ServerTest):
    name = "dots1"


class GraniteMoe(Tiny, harness.ServerTest):
    name = "granitemoe"


class Ernie45Moe(Tiny, harness.ServerTest):
    """Two shared experts, the first layer dense."""

    name = "ernie4_5_moe"


class Glm4MoeLite(Tiny, harness.ServerTest):
    name = "glm4_moe_lite"


class MinimaxM2(Tiny, harness.ServerTest):
    """Norms of whole queries and keys of which half of each head rotates."""

    name = "minimax_m2"


class Starcoder2(Tiny, harness.ServerTest):
    """Layer norms, and every layer with a window."""

    name = "starcoder2"


class StableLm(Tiny, harness.ServerTest):
    name = "stablelm"


class StableLmParallel(Tiny, harness.ServerTest):
    """Blocks side by side."""

    name = "stablelm_parallel"


class Phi(Tiny, harness.ServerTest):
    """A head with a bias."""

    name = "phi"


class Cohere(Tiny, harness.ServerTest):
    name = "cohere"


class Cohere2(Tiny, harness.ServerTest):
    """Layers with a window and positions, and one with neither."""

    name = "cohere2"


class Gemma4(Tiny, harness.ServerTest):
    """Inputs of each layer, and last layers that read earlier ones' caches."""

    name = "gemma4"


class Gemma4Dense(Tiny, harness.ServerTest):
    """Layers without a window whose heads are larger and whose values are the keys' projection."""

    name = "gemma4_dense"


class Gemma4Moe(Tiny, harness.ServerTest):
    """Experts beside the dense block."""

    name = "gemma4_moe"


class Qwen3Next(Tiny, harness.ServerTest):
    """Three layers with a state and one with gated attention, and experts."""

    name = "qwen3_next"


class Qwen35(Tiny, harness.ServerTest):
    """The same with dense blocks and projections apart."""

    name = "qwen3_5"


class GraniteHybrid(Tiny, harness.ServerTest):
    """Layers of Mamba and one of attention without positions, experts and a dense block."""

    name = "granitemoehybrid"


class Bamba(Tiny, harness.ServerTest):
    """Layers of Mamba and one of attention, half of whose heads rotates."""

    name = "bamba"


class FalconH1(Tiny, harness.ServerTest):
    """Layers of Mamba and attention side by side."""

    name = "falcon_h1"


class NemotronH(Tiny, harness.ServerTest):
    """Layers that are one block each: Mamba, attention without positions, feed-forward, experts without gates."""

    name = "nemotron_h"


class NemotronHNarrow(Tiny, harness.ServerTest):
    """Experts that read and write fewer numbers than the stream has."""

    name = "nemotron_h_narrow"


class OlmoHybrid(Tiny, harness.ServerTest):
    """Layers with a delta net and norms before the blocks, one with attention and norms after them."""

    name = "olmo_hybrid"


class Lfm2(Tiny, harness.ServerTest):
    """Three layers with a gated short convolution and one with attention."""

    name = "lfm2"


class Lfm2Moe(Tiny, harness.ServerTest):
    """The same with experts behind the first layer."""

    name = "lfm2_moe"


class CohereWithNorms(Tiny, harness.ServerTest):
    """Layer norms of the heads of queries and keys, each with weights of its own."""

    name = "cohere_plus"


class HunYuanMoe(Tiny, harness.ServerTest):
    """Norms of heads behind their rotation; experts and a shared one."""

    name = "hunyuan_v1_moe"


class Llama4(Tiny, harness.ServerTest):
    """Experts whose inputs are weighted, and a layer without positions whose queries grow."""

    name = "llama4"


class GptNeox(Tiny, harness.ServerTest):
    """Blocks side by side behind a norm each."""

    name = "gpt_neox"


class Falcon(Tiny, harness.ServerTest):
    """Projections of queries, keys and values by groups of heads."""

    name = "falcon_new"


class Mistral4(Tiny, harness.ServerTest):
    """Latent attention whose queries grow."""

    name = "mistral4"


class Trinity(Tiny, harness.ServerTest):
    """Gates of attention's output, windows on three layers of four."""

    name = "afmoe"


class Apertus(Tiny, harness.ServerTest):
    """An activation that each layer has learned."""

    name = "apertus"


class LlamaYarnMscale(Tiny, harness.ServerTest):
    """One key for all heads, biases everywhere, a head's size that is not the hidden size's share."""

    name = "llama_yarn_mscale"


class Qwen3Windows(Tiny, harness.ServerTest):
    name = "qwen3_windows"


class Glm(Tiny, harness.ServerTest):
    name = "glm_untied_bias"


class Gemma2Capless(Tiny, harness.ServerTest):
    """No cap of the scores, a head of its own, types of layers the other way round."""

    name = "gemma2_capless"


class Gemma3Wrapped(Tiny, harness.ServerTest):
    """The text part of a model that sees images, whose other tensors are left alone."""

    name = "gemma3_wrapped"

    def test_what_is_left_alone_is_told(self):
        self.assertIn("not loaded with the model, which does not use it", self.server.log_text())


class Gpt2Inverse(Tiny, harness.ServerTest):
    name = "gpt2_inverse"


class OptProjected(Tiny, harness.ServerTest):
    """Norms after the blocks, embeddings of another size."""

    name = "opt_projected"


class Qwen2MoeWindows(Tiny, harness.ServerTest):
    name = "qwen2_moe_windows"


class DeepseekV3Yarn(Tiny, harness.ServerTest):
    """Heads that rotate by halves, a first dense layer, and a layer behind the last that is left alone."""

    name = "deepseek_v3_yarn"


class GptOssLimits(Tiny, harness.ServerTest):
    name = "gpt_oss_limits"


class Phi3LongRope(Tiny, harness.ServerTest):
    """Prompts within the trained length and beyond it."""

    name = "phi3_longrope"


if __name__ == "__main__":
    harness.main()
