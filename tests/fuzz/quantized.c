/* Quantized tensors in a class for images too: FP8 of the text model, or beside it, with scales under each of their
 * names and of any shape and dtype; MXFP4 of any shape. The input chooses names, shapes, dtypes and blocks, and then is
 * the data: so all files are well-formed up to there. What is read at once must be what is read number by number. */
#include <endian.h>
#include <fcntl.h>
#include <unistd.h>

#include "ckpt.h"
#include "fuzz.h"

#define TEXT "language_model.model."
#define LAYER TEXT "layers.0."
enum { MOST = 40 }; /* of a dimension */

static const struct {
	const char *weight, *scale, *input;
} forms[] = {
	{".weight", ".weight_scale_inv", ".activation_scale"},
	{".weight", ".weight_scale", ".input_scale"},
	{".weight", ".scale", NULL},
	{".weight", ".qscale_weight", NULL},
	{".experts.gate_up_proj", ".experts.gate_up_proj_scale_inv", NULL},
	{".experts.down_proj", ".experts.down_proj_scale_inv", ".experts.down_proj_activation_scale"},
	{".experts.gate_up_proj", ".experts.gate_up_proj_scale", NULL},
	{"_blocks", "_scales", NULL},
};
enum { MXFP4 = sizeof forms / sizeof *forms - 1 };
static const char *const modules[] = {LAYER "self_attn.q_proj", "visual.x", "lm_head", LAYER "mlp.down_proj"};
static const struct {
	const char *name;
	uint32_t bytes;
} dtypes[] = {{"F8_E4M3", 1}, {"F32", 4}, {"BF16", 2}, {"F8_E8M0", 1}, {"U8", 1}, {"F16", 2}};
static const char *const text[] = {TEXT "embed_tokens", LAYER "self_attn.q_proj", LAYER "self_attn.k_proj",
	LAYER "self_attn.v_proj", LAYER "self_attn.o_proj", LAYER "mlp.gate_proj", LAYER "mlp.up_proj",
	LAYER "mlp.down_proj", LAYER "input_layernorm", LAYER "post_attention_layernorm", TEXT "norm"};

static char path[] = "/dev/shm/fuzz-quantized.XXXXXX";
static int dir = -1;

struct made { /* a file */
	char header[8192];
	size_t n;
	uint64_t bytes; /* of its data */
};

static void add(struct made *m, const char *module, const char *end, uint8_t dtype, uint32_t ndim,
	const uint64_t *shape)
{
	uint64_t bytes = dtypes[dtype].bytes;
	char *at = m->header + m->n;
	size_t room = sizeof m->header - m->n;
	int n = snprintf(at, room, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[", m->n > 9 ? "," : "", module, end,
		dtypes[dtype].name);
	for (uint32_t d = 0; d < ndim; d++) {
		n += snprintf(at + n, room - (size_t)n, "%s%llu", d ? "," : "", (unsigned long long)shape[d]);
		bytes *= shape[d];
	}
	n += snprintf(at + n, room - (size_t)n, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)m->bytes,
		(unsigned long long)(m->bytes + bytes));
	m->n += (size_t)n;
	m->bytes += bytes;
}

static void put(const char *name, const void *data, size_t n, bool more)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | (more ? O_APPEND : O_TRUNC), 0600);
	if (fd < 0 || write(fd, data, n) != (ssize_t)n) abort();
	close(fd);
}

static uint8_t take_byte(struct bytes *in)
{
	uint8_t b;
	take(in, &b, 1);
	return b;
}

static uint32_t take_shape(struct bytes *in, uint64_t shape[4])
{
	uint32_t ndim = take_byte(in) % 5;
	for (uint32_t d = 0; d < ndim; d++) shape[d] = take_byte(in) % (MOST + 1);
	return ndim;
}

static void make_config(struct bytes *in)
{
	static const char *const sizes[] = {"\"weight_block_size\":[%u,%u]", "\"weight_block_size\":null",
		"\"config_groups\":{\"g\":{\"weights\":{\"block_structure\":[%u,%u]}}}", "\"quant_method\":\"fp8\""};
	uint8_t how = take_byte(in), rows = take_byte(in), cols = take_byte(in);
	char size[128], config[1024];
	snprintf(size, sizeof size, sizes[how % 4], rows, cols);
	int n = snprintf(config, sizeof config,
		"{\"model_type\":\"llava\",\"tie_word_embeddings\":true,\"quantization_config\":{%s},\"text_config\":{"
		"\"model_type\":\"llama\",\"vocab_size\":4,\"hidden_size\":2,\"intermediate_size\":2,\"num_hidden_layers\":1,"
		"\"num_attention_heads\":1,\"num_key_value_heads\":1}}",
		how % 4 == 3 ? "\"quant_method\":\"fp8\"" : size);
	put("config.json", config, (size_t)n, false);
}

/* The file, but for the text model's tensor that the first one replaces */
static void make_file(struct bytes *in)
{
	static struct made m;
	static uint8_t data[1 << 20];
	const uint64_t of_text[2] = {2, 2}, embed[2] = {4, 2};
	uint64_t shape[4];
	m = (struct made){.n = 0};
	m.n = (size_t)snprintf(m.header, sizeof m.header, "{");
	for (int i = 1 + take_byte(in) % 3; i; i--) {
		uint8_t what = take_byte(in), form = what % (MXFP4 + 1);
		char module[64];
		snprintf(module, sizeof module, "%s%s", modules[what >> 3 & 3], i > 1 ? ".y" : "");
		uint32_t ndim = take_shape(in, shape);
		add(&m, module, forms[form].weight, form == MXFP4 ? 4 : 0, ndim, shape);
		ndim = take_shape(in, shape);
		add(&m, module, forms[form].scale, take_byte(in) % 6, ndim, shape);
		if (what & 32 && forms[form].input) add(&m, module, forms[form].input, 1, 0, shape);
		if (what & 64) break;
	}
	for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
		char name[64];
		snprintf(name, sizeof name, "\"%s.weight\"", text[i]);
		if (!strstr(m.header, name)) add(&m, text[i], ".weight", 2, i > 7 ? 1 : 2, i ? of_text : embed);
	}
	m.header[m.n++] = '}';
	uint64_t n = htole64(m.n);
	if (m.bytes > sizeof data) m.bytes = sizeof data; /* then the header is refused */
	for (uint64_t i = 0; i < m.bytes; i++) data[i] = in->n ? in->p[i % in->n] : 0x38;
	put("model.safetensors", &n, 8, false);
	put("model.safetensors", m.header, m.n, true);
	put("model.safetensors", data, m.bytes, true);
}

/* At once, and number by number */
static void read_twice(const struct st_entry *e)
{
	static uint32_t all[MOST * MOST * MOST], one;
	static uint8_t raw[2 * MOST * MOST * MOST];
	uint64_t n = (e->tensor->end - e->tensor->begin) / e->tensor->elem;
	if (n == 0 || n > MOST * MOST * MOST || model_read(e, 0, n, raw, all) < 0) return;
	for (uint64_t i = 0; i < n; i += 1 + n / 64)
		if (model_read(e, i, 1, raw, &one) < 0 || one != all[i]) abort();
}

static void read_mxfp4(const struct model *m, struct st_entry *e)
{
	static uint32_t bits[MOST * MOST * 32];
	static uint8_t raw[MOST * MOST * 32];
	const uint64_t *shape = e->tensor->shape;
	struct mt_tensor want = {.ndim = 3,
		.experts = (uint32_t)shape[0],
		.shape = {(uint32_t)shape[2] * 32, (uint32_t)shape[1]}};
	if (e->tensor->ndim != 4 || !shape[0] || !shape[1] || !shape[2] || mxfp4_match(m, e, &want) < 0) return;
	for (uint64_t row = 0; row < shape[0] * shape[1]; row += 1 + row) mxfp4_read(e, row, 1, want.shape[0], raw, bits);
}

static void read_all(struct source *s)
{
	struct model *m = &s->model[ARRAY_W];
	for (size_t i = 0; i < m->n; i++) {
		if (m->entries[i].scale) read_twice(&m->entries[i]);
		else if (is_mxfp4(&m->entries[i])) read_mxfp4(m, &m->entries[i]);
	}
}

static void clean(void)
{
	unlinkat(dir, "config.json", 0);
	unlinkat(dir, "model.safetensors", 0);
	rmdir(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes in = {data, size};
	struct source s;
	struct kept kept = {0};
	if (dir < 0) {
		if (!mkdtemp(path) || (dir = open(path, O_RDONLY | O_DIRECTORY)) < 0) abort();
		atexit(clean);
		work_threads = 1;
	}
	make_config(&in);
	make_file(&in);
	if (source_open(&s, path, false) == 0 && source_config(&s, 0) == 0 && source_models(&s) == 0)
		carried_note(&kept, &s, false);
	read_all(&s);
	kept_release(&kept);
	source_close(&s);
	return 0;
}
