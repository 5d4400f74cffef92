"""left_out.py: what the ablations leave out: its description, words of $MT_WITHOUT, options of mt-stream and mt-plan,
and the TFLOP/s that MegaTrain reaches without it (table 4 of arXiv 2604.05091). First: nothing."""
LEFT_OUT = (("nothing", "", "", "266"), ("weight slots but one (no double buffering)", "slots", "", "183"),
            ("prefetch: what comes in waits for compute", "prefetch", "", "–"),
            ("gradient slots but one: gradients leave before the next block computes", "grads", "", "–"),
            ("pieces of gradients under way but one (no slab pool)", "pieces", "", "258"),
            ("the update behind the forward pass", "update", "", "–"),
            ("activations kept: `--recompute full` (a checkpoint at every block)", "", "--recompute full", "240 (*)"),
            ("all of these", "slots,prefetch,grads,pieces,update", "--recompute full", "–"))
