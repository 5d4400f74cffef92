/* abi.h: every field of every shared struct, once: abi.c asserts the offsets below, mt-store stat --abi prints them,
 * and a test compares that with shm/ABI.md. Not for programs. F(struct, field, offset, size) */
/* clang-format off */
#include "mt/documents.h"
#include "mt/figures.h"

#define MT_ABI_FIGURE(F, field, kind, ...) F(mt_figures, field, 8 * MT_FIGURE_AT_##field, MT_ABI_BYTES_##kind)
#define MT_ABI_IN_TXN(F, field, kind, ...) F(mt_txn, field, 216 + 8 * MT_FIGURE_IN_TXN_##field, MT_ABI_BYTES_##kind)
#define MT_ABI_BYTES_NUMBER 8
#define MT_ABI_BYTES_NUMBER_OR_NONE 8
#define MT_ABI_BYTES_COUNT 8
#define MT_ABI_BYTES_BOOL 4

#define MT_ABI_GEOMETRY(F) \
	F(mt_layer, heads, 0, 4) F(mt_layer, kv_heads, 4, 4) F(mt_layer, head_dim, 8, 4) F(mt_layer, ffn, 12, 4) \
	F(mt_layer, form, 16, 4) F(mt_layer, window, 20, 4) F(mt_layer, rope_dim, 24, 4) F(mt_layer, neighbours, 28, 4) \
	F(mt_layer, k_is_v, 32, 4) F(mt_layer, rope_scaling, 36, 4) F(mt_layer, rope_inv_freq, 40, 1024) \
	F(mt_layer, experts, 1064, 4) F(mt_layer, experts_per_token, 1068, 4) F(mt_layer, expert_ffn, 1072, 4) \
	F(mt_layer, shared_ffn, 1076, 4) F(mt_layer, score, 1080, 4) F(mt_layer, expert_flags, 1084, 4) \
	F(mt_layer, groups, 1088, 4) F(mt_layer, groups_per_token, 1092, 4) F(mt_layer, expert_scale, 1096, 4) \
	F(mt_layer, weight_floor, 1100, 4) F(mt_layer, mixer, 1104, 4) F(mt_layer, key_heads, 1108, 4) \
	F(mt_layer, value_heads, 1112, 4) F(mt_layer, key_dim, 1116, 4) F(mt_layer, value_dim, 1120, 4) \
	F(mt_layer, conv_width, 1124, 4) F(mt_layer, output_gate, 1128, 4) F(mt_layer, conv_dim, 1132, 4) \
	F(mt_layer, weight_eps, 1136, 4) F(mt_layer, q_rank, 1140, 4) F(mt_layer, kv_rank, 1144, 4) \
	F(mt_layer, v_dim, 1148, 4) F(mt_layer, mamba_flags, 1152, 4) F(mt_layer, dt_min, 1156, 4) \
	F(mt_layer, dt_max, 1160, 4) F(mt_layer, span, 1164, 4) F(mt_layer, kv_kind, 1168, 4) \
	F(mt_layer, gate_rank, 1172, 4) F(mt_layer, mtp, 1176, 4) F(mt_layer, parts, 1180, 4) \
	F(mt_layer, mixer_eps, 1184, 4) F(mt_layer, part_eps, 1188, 4) F(mt_layer, sparsity, 1192, 4) \
	F(mt_geometry, family, 0, 32) F(mt_geometry, layers, 32, 4) F(mt_geometry, hidden, 36, 4) \
	F(mt_geometry, vocab, 40, 4) F(mt_geometry, max_position, 44, 4) F(mt_geometry, flags, 48, 4) \
	F(mt_geometry, names, 52, 4) F(mt_geometry, pad_token, 56, 4) F(mt_geometry, norm_eps, 60, 4) \
	F(mt_geometry, init_range, 64, 4) F(mt_geometry, embed_scale, 68, 4) F(mt_geometry, residual_scale, 72, 4) \
	F(mt_geometry, attention_scale, 76, 4) F(mt_geometry, attention_cap, 80, 4) F(mt_geometry, logit_scale, 84, 4) \
	F(mt_geometry, logit_cap, 88, 4) F(mt_geometry, temperature, 92, 4) F(mt_geometry, temperature_positions, 96, 4) \
	F(mt_geometry, n_kinds, 100, 4) F(mt_geometry, kind_of, 104, 1024) F(mt_geometry, kind, 1128, 9728) \
	F(mt_geometry, aux_coef, 10856, 4) F(mt_geometry, z_coef, 10860, 4) F(mt_geometry, wrapper, 10864, 32) \
	F(mt_geometry, carried_bytes, 10896, 8) F(mt_geometry, carried, 10904, 4) \
	F(mt_geometry, position_offset, 10908, 4) F(mt_geometry, mlp_scale, 10912, 4) \
	F(mt_geometry, mamba_out_scale, 10916, 4) F(mt_geometry, gate_scale, 10920, 4) \
	F(mt_geometry, mamba_scale, 10924, 20) F(mt_geometry, mamba_in_scale, 10944, 4) \
	F(mt_geometry, attention_in_scale, 10948, 4) F(mt_geometry, ple_dim, 10952, 4) \
	F(mt_geometry, ple_vocab, 10956, 4) F(mt_geometry, alibi, 10960, 4) F(mt_geometry, alibi_scale, 10964, 4) \
	F(mt_geometry, alibi_rounded, 10968, 4) F(mt_geometry, mtp, 10972, 4) F(mt_geometry, sine_step, 10976, 4) \
	F(mt_geometry, altup, 10980, 4) F(mt_geometry, laurel_rank, 10984, 4)

#define MT_ABI_FIELDS(F) \
	F(mt_header, magic, 0, 8) F(mt_header, abi, 8, 4) F(mt_header, state, 12, 4) F(mt_header, fingerprint, 16, 8) \
	F(mt_header, size, 24, 8) F(mt_header, run_id, 32, 16) F(mt_header, boot_id, 48, 16) \
	F(mt_control, h, 0, 128) F(mt_control, event, 128, 4) F(mt_control, waiters, 132, 4) F(mt_control, name, 192, 40) \
	F(mt_control, uid, 232, 4) F(mt_control, dtype, 236, 4) F(mt_control, grad, 240, 4) F(mt_control, n_units, 244, 4) \
	F(mt_control, n_tensors, 248, 4) F(mt_control, partitions, 252, 4) F(mt_control, group, 256, 4) \
	F(mt_control, state, 260, 4) \
	F(mt_control, step_tokens, 264, 8) F(mt_control, piece_elems, 272, 8) F(mt_control, params, 280, 8) \
	F(mt_control, off_units, 288, 8) F(mt_control, off_tensors, 296, 8) F(mt_control, off_choices, 304, 8) \
	F(mt_control, off_journal, 312, 8) F(mt_control, off_config, 320, 8) F(mt_control, config_bytes, 328, 8) \
	F(mt_control, numa, 336, 64) F(mt_control, geo, 400, 11048) F(mt_control, optim, 11448, 4) \
	F(mt_control, router_dtype, 11452, 4) \
	F(mt_control, attempts, 11456, 8) \
	F(mt_control, fills, 11464, 8) F(mt_control, form, 11472, 8) F(mt_control, top, 11480, 8) \
	F(mt_control, record, 11520, 320) F(mt_control, snap, 11840, 192) F(mt_control, slots, 12032, 18432) \
	F(mt_control, txn, 30464, 197376) F(mt_control, unlogged, 227840, 16 * MT_FIGURES_WORDS) \
	F(mt_control, hyper, 227840 + 16 * MT_FIGURES_WORDS, 160) F(mt_control, nodes, 228160, 1600) \
	F(mt_control, tier, 229760, 320) F(mt_control, train, 230080, 512) F(mt_control, freeze, 230592, 512) \
	F(mt_tier, tiles, 0, 4) F(mt_tier, slots, 4, 4) F(mt_tier, dirs, 8, 4) F(mt_tier, order, 12, 4) \
	F(mt_tier, first, 16, 4) F(mt_tier, moved, 20, 4) \
	F(mt_tier, tile_elems, 24, 8) F(mt_tier, off_slots, 32, 8) F(mt_tier, slot_bytes, 40, 8) \
	F(mt_tier, off_dirs, 48, 8) F(mt_tier, bytes, 56, 8) F(mt_tier, params, 64, 8) F(mt_tier, t0, 72, 8) \
	F(mt_tier, from, 80, 16) F(mt_tier, loaded, 128, 8) F(mt_tier, updated, 192, 8) F(mt_tier, written, 256, 8) \
	F(mt_nodes, node, 0, 4) F(mt_nodes, nodes, 4, 4) F(mt_nodes, proposed, 8, 4) \
	F(mt_nodes, streams, 12, 4) F(mt_nodes, done, 64, 512) F(mt_nodes, snap, 576, 512) F(mt_nodes, token, 1088, 512) \
	MT_ABI_GEOMETRY(F) \
	F(mt_tensor, name, 0, 120) F(mt_tensor, role, 120, 4) F(mt_tensor, unit, 124, 4) F(mt_tensor, ndim, 128, 4) \
	F(mt_tensor, decay, 132, 4) F(mt_tensor, shape, 136, 16) F(mt_tensor, off, 152, 8) F(mt_tensor, n, 160, 8) \
	F(mt_tensor, expert, 168, 4) F(mt_tensor, experts, 172, 4) F(mt_tensor, exact, 176, 4) \
	F(mt_tensor, transposed, 180, 4) F(mt_tensor, frozen, 184, 4) \
	F(mt_unit, elems, 0, 8) F(mt_unit, params, 8, 8) F(mt_unit, w, 16, 8) F(mt_unit, lo, 24, 8) F(mt_unit, m, 32, 8) \
	F(mt_unit, v, 40, 8) F(mt_unit, g, 48, 16) F(mt_unit, first_tensor, 64, 4) F(mt_unit, tensors, 68, 4) \
	F(mt_unit, first_tile, 72, 4) F(mt_unit, tiles, 76, 4) \
	F(mt_unit, applied, 80, 8) F(mt_unit, updated, 88, 8) F(mt_unit, squares, 96, 8) F(mt_unit, opened, 104, 8) \
	F(mt_unit, version, 128, 8) F(mt_unit, pin, 192, 8) \
	F(mt_slot, word, 0, 8) F(mt_slot, aborted, 8, 4) F(mt_slot, activity, 12, 4) F(mt_slot, activity_arg, 16, 8) \
	F(mt_slot, counters, 24, 64) F(mt_slot, pid_ns, 88, 8) F(mt_slot, planned, 96, 24) \
	F(mt_slot, gpu, 120, 72) \
	F(mt_position, records, 0, 8) F(mt_position, offset, 8, 8) F(mt_position, hash, 16, 8) \
	F(mt_position, hash_cut, 24, 8) \
	F(mt_position, carry, 32, 4) F(mt_position, seq, 36, 4) F(mt_position, batch, 40, 4) F(mt_position, pack, 44, 4) \
	F(mt_position, tokens, 48, 8) F(mt_position, processed, 56, 8) \
	F(mt_txn, word, 0, 8) F(mt_txn, step, 64, 8) F(mt_txn, kind, 72, 4) F(mt_txn, micros, 76, 4) \
	F(mt_txn, targets, 80, 8) \
	F(mt_txn, lr, 88, 8) F(mt_txn, beta1, 96, 8) F(mt_txn, beta2, 104, 8) F(mt_txn, eps, 112, 8) \
	F(mt_txn, decay, 120, 8) \
	F(mt_txn, clip, 128, 8) F(mt_txn, save, 136, 4) F(mt_txn, last, 140, 4) F(mt_txn, position, 144, 72) \
	MT_FIGURES_MORE(MT_ABI_IN_TXN, F) \
	F(mt_txn, t, 256, 8) \
	F(mt_txn, norm, 264, 8) F(mt_txn, clip_factor, 272, 8) F(mt_txn, skipped, 280, 4) F(mt_txn, source, 288, 8) \
	F(mt_txn, source_ring, 296, 8) F(mt_txn, aux, 304, 8) F(mt_txn, z, 312, 8) \
	F(mt_txn, figures, 320, 40) F(mt_txn, losses, 384, 98304) \
	F(mt_loss, sum, 0, 8) F(mt_loss, targets, 8, 8) F(mt_loss, nonfinite, 16, 4) F(mt_loss, entered, 20, 4) \
	F(mt_figures, step, 0, 8) MT_FIGURES_LAID(MT_ABI_FIGURE, F) \
	F(mt_hyper, step, 0, 8) F(mt_hyper, lr, 8, 8) F(mt_hyper, beta1, 16, 8) F(mt_hyper, beta2, 24, 8) \
	F(mt_hyper, eps, 32, 8) \
	F(mt_hyper, decay, 40, 8) F(mt_hyper, clip, 48, 8) F(mt_hyper, targets, 56, 8) F(mt_hyper, micros, 64, 4) \
	F(mt_snapshot, word, 0, 8) F(mt_snapshot, t, 64, 8) F(mt_snapshot, position, 72, 72) F(mt_snapshot, saved, 144, 8) \
	F(mt_snapshot, failed, 152, 8) \
	F(mt_record, owner, 0, 8) F(mt_record, set, 8, 4) F(mt_record, chunk_tokens, 12, 4) \
	F(mt_record, head_tokens, 16, 4) \
	F(mt_record, pass_rows, 20, 4) F(mt_record, device, 24, 32) F(mt_record, gemm, 56, 64) \
	F(mt_record, attention, 120, 64) \
	F(mt_record, machine, 184, 64) F(mt_record, taken, 248, 4) F(mt_record, first, 252, 4) \
	F(mt_choice, key, 0, 120) F(mt_choice, bytes, 120, 4) F(mt_choice, next, 124, 4) F(mt_choice, value, 128, 120) \
	F(mt_partition, index, 0, 8) F(mt_partition, slot, 64, 2048) \
	F(mt_ringbuf, name, 0, 32) F(mt_ringbuf, slots, 32, 4) F(mt_ringbuf, off_messages, 40, 8) \
	F(mt_ringbuf, off_blocks, 48, 8) \
	F(mt_ringbuf, block_bytes, 56, 8) F(mt_ringbuf, tail, 128, 8) F(mt_ringbuf, head, 192, 8) \
	F(mt_rings, h, 0, 128) F(mt_rings, n, 128, 4) \
	F(mt_msg, k, 0, 4) F(mt_msg, attempt, 4, 4) F(mt_msg, kind, 8, 2) F(mt_msg, txn_kind, 10, 2) \
	F(mt_msg, micro, 12, 4) \
	F(mt_msg, step, 16, 8) F(mt_msg, batch.version, 24, 8) F(mt_msg, batch.rows, 32, 4) F(mt_msg, batch.seq, 36, 4) \
	F(mt_msg, batch.loss_scale, 40, 8) F(mt_msg, batch.micros, 48, 4) \
	F(mt_msg, batch.scores, 52, 2) F(mt_msg, batch.weights, 54, 2) F(mt_msg, batch.top, 56, 4) \
	F(mt_msg, batch.documents, 60, 4) \
	F(mt_msg, loss.sum, 24, 8) \
	F(mt_msg, loss.targets, 32, 8) F(mt_msg, loss.nonfinite, 40, 4) F(mt_msg, loss.mtp, 44, 4) \
	F(mt_msg, loss.aux, 48, 8) \
	F(mt_msg, loss.z, 56, 8) F(mt_msg, grad.unit, 24, 4) \
	F(mt_msg, grad.end, 28, 4) \
	F(mt_msg, grad.off, 32, 8) F(mt_msg, grad.n, 40, 8) F(mt_msg, grad.zero, 48, 4) \
	F(mt_msg, score.off, 24, 8) F(mt_msg, score.n, 32, 8) F(mt_msg, figures.figures, 24, 40) \
	F(mt_objective, kind, 0, 4) F(mt_objective, scale, 8, 8) F(mt_objective, beta, 16, 8) \
	F(mt_objective, gamma, 24, 8) F(mt_objective, low, 32, 8) F(mt_objective, high, 40, 8) \
	F(mt_objective, chosen_scale, 48, 8) F(mt_objective, temperature, 56, 8) \
	F(mt_document, begin, 0, 4) F(mt_document, side, 4, 4) F(mt_document, ref, 8, 8)

#define MT_ABI_SIZES(S) \
	S(mt_header, 128) S(mt_control, 231104) S(mt_layer, 1216) S(mt_geometry, 11048) S(mt_tensor, 192) S(mt_unit, 256) \
	S(mt_slot, 256) \
	S(mt_position, 72) S(mt_txn, 98688) S(mt_loss, 24) S(mt_figures, 8 * MT_FIGURES_WORDS) \
	S(mt_hyper, 80) S(mt_nodes, 1600) S(mt_tier, 320) \
	S(mt_snapshot, 192) \
	S(mt_record, 320) S(mt_choice, 256) \
	S(mt_partition, 2112) S(mt_ringbuf, 256) S(mt_msg, 64) S(mt_rings, 256) \
	S(mt_objective, 64) S(mt_document, 16)

/* R(struct, field, size): bytes for later fields. With those above they fill each struct, so that a new field must take
 * its bytes from one of them, and be listed. */
#define MT_ABI_RESERVED(R) \
	R(mt_header, reserved, 64) R(mt_control, reserved0, 56) R(mt_control, reserved1, 32) \
	R(mt_control, reserved2, 160 - 16 * MT_FIGURES_WORDS) \
	R(mt_layer, reserved, 20) R(mt_geometry, reserved, 60) R(mt_tensor, reserved, 4) \
	R(mt_unit, reserved0, 16) R(mt_unit, reserved1, 56) R(mt_unit, reserved2, 56) R(mt_slot, reserved, 64) \
	R(mt_position, reserved, 8) R(mt_txn, reserved0, 56) \
	R(mt_txn, reserved1, 40 - 8 * MT_FIGURES_IN_TXN) R(mt_txn, reserved2, 4) R(mt_txn, reserved3, 24) \
	R(mt_figures, reserved_skipped, 4) R(mt_hyper, reserved0, 4) R(mt_hyper, reserved, 8) R(mt_nodes, reserved, 48) \
	R(mt_tier, reserved1, 32) R(mt_tier, reserved2, 56) R(mt_tier, reserved3, 56) \
	R(mt_tier, reserved4, 56) \
	R(mt_snapshot, reserved0, 56) R(mt_snapshot, reserved1, 32) R(mt_record, reserved, 64) R(mt_choice, reserved, 8) \
	R(mt_partition, reserved, 56) R(mt_ringbuf, reserved0, 4) R(mt_ringbuf, reserved1, 64) \
	R(mt_ringbuf, reserved2, 56) R(mt_ringbuf, reserved3, 56) R(mt_rings, reserved, 124) \
	R(mt_msg, grad.reserved0, 4) R(mt_msg, grad.reserved1, 8) R(mt_msg, score.reserved, 24) \
	R(mt_objective, reserved0, 4)
/* clang-format on */
