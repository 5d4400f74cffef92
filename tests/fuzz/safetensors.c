/* The header of a safetensors file; the first two bytes are the length of its data */
#include "ckpt.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bytes in = {data, size};
	uint16_t bytes;
	take(&in, &bytes, sizeof bytes);
	char *text = as_text(in.p, in.n);
	struct st_file f = {.fd = -1, .name = strdup("x")};
	if (st_header(&f, text, in.n, 8 + in.n + bytes) == 0)
		for (size_t i = 0; i < f.n; i++)
			if (f.tensors[i].end > 8 + in.n + bytes || !st_find(&f, f.tensors[i].name)) abort();
	st_close(&f);
	free(text);
	return 0;
}
