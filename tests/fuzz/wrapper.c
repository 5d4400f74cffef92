/* The header of model.safetensors beside a class for images too: what it says of ties, and what is carried. The first
 * two bytes are the length of its data */
#include <endian.h>
#include <fcntl.h>
#include <unistd.h>

#include "ckpt.h"
#include "fuzz.h"

static const char config[] = "{\"model_type\":\"llava\",\"tie_word_embeddings\":true,\"text_config\":{\"model_type\":"
							 "\"llama\",\"vocab_size\":4,\"hidden_size\":2,\"intermediate_size\":2,"
							 "\"num_hidden_layers\":1,\"num_attention_heads\":1,\"num_key_value_heads\":1}}";
static char path[] = "/tmp/fuzz-wrapper.XXXXXX";
static int dir = -1;

static void put(const char *name, const struct bytes *parts, int n)
{
	int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	for (int i = 0; i < n; i++)
		if (fd < 0 || write(fd, parts[i].p, parts[i].n) != (ssize_t)parts[i].n) abort();
	close(fd);
}

static void clean(void)
{
	unlinkat(dir, "config.json", 0);
	unlinkat(dir, "model.safetensors", 0);
	rmdir(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint8_t zeros[UINT16_MAX];
	struct bytes in = {data, size};
	struct source s;
	struct kept kept = {0};
	uint16_t bytes;
	take(&in, &bytes, sizeof bytes);
	uint64_t n = htole64(in.n);
	if (dir < 0) {
		if (!mkdtemp(path) || (dir = open(path, O_RDONLY | O_DIRECTORY)) < 0) abort();
		put("config.json", &(struct bytes){(const uint8_t *)config, sizeof config - 1}, 1);
		atexit(clean);
		work_threads = 1;
	}
	put("model.safetensors", (struct bytes[]){{(uint8_t *)&n, 8}, in, {zeros, bytes}}, 3);
	if (source_open(&s, path, false) == 0 && source_config(&s, 0) == 0 && source_models(&s) == 0)
		carried_note(&kept, &s, false);
	kept_release(&kept);
	source_close(&s);
	return 0;
}
