/* run.json. Its checksum is corrected first, because random changes never match it. */
#include "ckpt.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct run_json json;
	json_t *files, *root = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
	if (json_is_object(root)) {
		json_object_del(root, "checksum");
		uint64_t right;
		if (run_json_checksum(root, &right) == 0) {
			json_object_set_new(root, "checksum", json_hash(right));
			run_json_parse(root, &json, &files);
		}
	}
	json_decref(root);
	return 0;
}
