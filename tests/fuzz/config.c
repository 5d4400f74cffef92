/* config.json, and the layout of the model that it describes */
#include "fuzz.h"
#include "lib.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = as_text(data, size);
	struct mt_geometry geo;
	struct mt_layout layout;
	if (config_parse(text, size, &geo) == 0 && mt_layout_make(&layout, &geo, MT_BF16, MT_FP32, MT_FP32, MT_ADAMW) == 0)
		mt_layout_release(&layout);
	free(text);
	return 0;
}
