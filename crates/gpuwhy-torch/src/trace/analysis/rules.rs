// SPDX-License-Identifier: Apache-2.0
//! The kind of work of a kernel, by rules over names in one editable file.

use crate::trace::Error;
use serde::Deserialize;

/// The built-in rules.
const BUILT_IN: &str = include_str!("../../../rules.toml");
/// The category that the account separates from compute.
pub(crate) const COMMUNICATION: &str = "communication";
/// Kernels that match no rule.
pub(crate) const UNCLASSIFIED: &str = "unclassified";
/// Copies by the copy engine, and kernels that do nothing else.
pub(crate) const COPIES: &str = "copies";
/// Fills by the copy engine, and kernels that do nothing else.
pub(crate) const FILLS: &str = "memset and fill";
/// Kernels that change a tensor's type and nothing else.
pub(crate) const CONVERSION: &str = "dtype conversion";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rule: Vec<Rule>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    category: String,
    #[serde(default)]
    any: Vec<String>,
    #[serde(default)]
    all: Vec<String>,
    #[serde(default)]
    none: Vec<String>,
    #[serde(default)]
    op: Vec<String>,
}

/// Rules that put kernels into categories.
#[derive(Debug, Clone)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// The built-in rules.
    pub fn built_in() -> Result<Self, Error> {
        Self::parse(BUILT_IN)
    }

    /// Rules from TOML text, in the form of `rules.toml`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let file: File = toml::from_str(text).map_err(|e| Error::Rules(e.to_string()))?;
        let mut rules = file.rule;
        for rule in &mut rules {
            if rule.any.is_empty() && rule.all.is_empty() && rule.op.is_empty() {
                return Err(Error::Rules(format!(
                    "the rule for {:?} matches every kernel: give it `any`, `all` or `op`",
                    rule.category
                )));
            }
            for list in [&mut rule.any, &mut rule.all, &mut rule.none, &mut rule.op] {
                list.iter_mut().for_each(|word| *word = word.to_lowercase());
            }
        }
        Ok(Self { rules })
    }

    /// The category of a kernel launched by `op` (empty when not known).
    pub fn category(&self, kernel: &str, op: &str) -> &str {
        let (kernel, op) = (kernel.to_lowercase(), op.to_lowercase());
        let fits = |rule: &&Rule| {
            (rule.any.is_empty() || rule.any.iter().any(|word| kernel.contains(word.as_str())))
                && rule.all.iter().all(|word| kernel.contains(word.as_str()))
                && !rule.none.iter().any(|word| kernel.contains(word.as_str()))
                && (rule.op.is_empty() || rule.op.iter().any(|word| op.contains(word.as_str())))
        };
        self.rules.iter().find(fits).map_or(UNCLASSIFIED, |rule| &rule.category)
    }

    /// Whether any rule looks at the op.
    pub(crate) fn look_at_ops(&self) -> bool {
        self.rules.iter().any(|rule| !rule.op.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_of_real_traces() {
        let rules = Rules::built_in().unwrap();
        let cases = [
            ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "communication"),
            ("ncclKernel_AllReduce_RING_LL_Sum_float", "communication"),
            ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x64", "attention"),
            ("void cudnn::fusion::compute_dot_do_o_specialized<true, 64>(void const*)", "attention"),
            ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "attention"),
            ("nvjet_sm90_tst_128x128_64x6_2x1_v_bz_NNT", "GEMM"),
            ("Cijk_Ailk_Bljk_SB_MT16x16x8_SN_AMAS0_BL1", "GEMM"),
            ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align4>", "GEMM"),
            ("sm90_xmma_wgrad_indexed_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc", "convolution"),
            ("void causal_conv1d_fwd_kernel<Causal_conv1d_fwd_kernel_traits<128>>", "convolution"),
            ("void cudnn::bn_bw_1C11_kernel_new<float, float, float2, 128, true, 1>", "normalisation"),
            ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "normalisation"),
            ("void at::native::(anonymous namespace)::cunn_SoftMaxForwardReg<float>", "softmax"),
            (
                "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda",
                "dtype conversion",
            ),
            (
                "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda, LoadWithCast<1>>",
                "dtype conversion",
            ),
            ("void at::native::elementwise_kernel<128, 4, gpu_kernel_impl_nocast<direct_copy_kernel_cuda", "copies"),
            ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>>", "copies"),
            ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<>", "optimizer and foreach"),
            ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>", "memset and fill"),
            ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>", "elementwise"),
            ("void at::native::reduce_kernel<128, 4, at::native::ReduceOp<c10::BFloat16>", "reduction"),
            ("void kDequantizeBlockwise<__nv_bfloat16, 512, 64, 8, 2>(float*)", "quantisation"),
            ("void kgemm_4bit_inference_naive<__nv_bfloat16, 128, 16>", "quantisation"),
            ("_scatter2scatter", "MoE"),
            ("chunk_gated_delta_rule_fwd_kernel_h_blockdim64", "FLA and state space"),
            ("triton_poi_fused_add_mul_native_layer_norm_3", "Triton (torch.compile)"),
            ("triton_tem_fused_mm_17", "GEMM"),
            ("_lora_expand_kernel", "LoRA and DoRA"),
            ("void at::native::(anonymous namespace)::nll_loss_forward_reduce_cuda_kernel_2d", "loss"),
            ("liger_cross_entropy_kernel", "loss"),
            ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", "index, sort and top-k"),
            ("void at::native::(anonymous namespace)::embedding_backward_feature_kernel", "embedding"),
            ("void split_embedding_backward_fbgemm_gpu", "embedding"),
            ("my_very_own_thing", UNCLASSIFIED),
        ];
        for (kernel, category) in cases {
            assert_eq!(rules.category(kernel, ""), category, "{kernel}");
        }
    }

    #[test]
    fn own_rules_can_look_at_the_op() {
        let rules =
            Rules::parse("[[rule]]\ncategory = \"mine\"\nany = [\"Elementwise\"]\nop = [\"aten::gelu\"]").unwrap();
        assert_eq!(rules.category("vectorized_ELEMENTWISE_kernel", "aten::gelu_backward"), "mine");
        assert_eq!(rules.category("vectorized_elementwise_kernel", "aten::add"), UNCLASSIFIED);
        assert!(rules.look_at_ops());
    }

    #[test]
    fn wrong_rules_say_why() {
        let everything = Rules::parse("[[rule]]\ncategory = \"x\"").unwrap_err().to_string();
        assert!(everything.contains("matches every kernel"), "{everything}");
        let unknown = Rules::parse("[[rule]]\ncategory = \"x\"\nanny = [\"y\"]").unwrap_err().to_string();
        assert!(unknown.contains("anny"), "{unknown}");
    }
}
