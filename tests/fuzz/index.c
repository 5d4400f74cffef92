/* model.safetensors.index.json, with one shard s.safetensors that has the tensors a and b */
#include <fcntl.h>
#include <unistd.h>

#include "ckpt.h"
#include "fuzz.h"

static int shard_dir(void)
{
	static const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
								 "\"b\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}";
	char dir[] = "/tmp/fuzz-index.XXXXXX";
	uint64_t n = sizeof header - 1;
	if (!mkdtemp(dir)) abort();
	int d = open(dir, O_RDONLY | O_DIRECTORY), fd = openat(d, "s.safetensors", O_WRONLY | O_CREAT, 0600);
	if (write(fd, &n, 8) != 8 || write(fd, header, n) != (ssize_t)n || write(fd, "xy", 2) != 2) abort();
	close(fd);
	return d;
}

static int dir = -1;
/* an open directory needs no name; its file keeps one as long as it is needed */
static void clean(void)
{
	char path[64], name[4096];
	snprintf(path, sizeof path, "/proc/self/fd/%d", dir);
	ssize_t n = readlink(path, name, sizeof name - 1);
	unlinkat(dir, "s.safetensors", 0);
	if (n > 0) {
		name[n] = 0;
		rmdir(name);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (dir < 0) {
		dir = shard_dir();
		atexit(clean);
	}
	json_t *root = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
	struct st_files m = {.label = strdup("index")};
	if (json_is_object(root)) st_shards(&m, dir, root, NULL);
	st_files_close(&m);
	json_decref(root);
	return 0;
}
