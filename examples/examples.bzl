"""The names of the examples, which are tested here and are in the bundle."""

EXAMPLES = [
    "01_hello_heap",
    "02_put_get",
    "03_atomics",
    "04_message_passing",
    "05_all_reduce",
    "06_bandwidth_matrix",
    "07_atomic_matrix",
    "08_gemm_all_scatter",
    "09a_gemm_all_reduce_atomics",
    "09b_gemm_all_reduce_locks",
    "10_digits_training",
    "11a_overlap_streams",
    "11b_overlap_blocks",
    "11c_overlap_warps",
    "12_all_gather_gemm",
    "14_jacobi",
    "15_flash_decode",
    "16_ring_attention",
    "17_moe_layer",
    "18_gpt_step",
]
