/* ckpt-edit: change a key of a checkpoint's run.json and put the right checksum into it, so that a test sees what is
 * refused for the key's sake. A real run.json whose checksum is wrong is refused before.
 *
 *     ckpt-edit DIR KEY [WORD]     WORD: the key's new string; without: remove the key. A.B: key B of object A, or of
 *                                  the first object of list A
 *     ckpt-edit DIR --files        put the lengths and checksums of all files into it, of at most 16 MiB each
 */
#include <fcntl.h>
#include <stdlib.h>
#include "ckpt.h"
#include "cli/cli.h"

static void correct_files(const char *dir, json_t *files)
{
	const char *name;
	json_t *entry;
	int fd;
	mt_must(dir_open(dir, &fd));
	json_object_foreach(files, name, entry)
	{
		char *data;
		size_t n;
		mt_must(file_read_all(fd, name, IO_BYTES, &data, &n));
		json_object_set_new(entry, "bytes", json_integer((json_int_t)n));
		if (n) json_array_set_new(json_object_get(entry, "xxh3"), 0, json_hash(XXH3_64bits(data, n)));
		free(data);
	}
}

int main(int argc, char **argv)
{
	char path[4096];
	uint64_t right;
	if (argc != 3 && argc != 4) mt_die(MT_EX_USAGE, "usage: ckpt-edit DIR KEY [WORD] | DIR --files");
	snprintf(path, sizeof path, "%s/run.json", argv[1]);
	json_t *root = json_load_file(path, 0, NULL);
	bool files = !strcmp(argv[2], "--files");
	char *key = argv[2], *dot = strchr(key, '.');
	json_t *object = root;
	if (dot) {
		*dot = 0;
		object = json_object_get(root, key);
		if (json_is_array(object)) object = json_array_get(object, 0);
		key = dot + 1;
	}
	if (!files && !json_object_get(object, key)) mt_die(MT_EX_DATA, "%s has no '%s'", path, key);
	if (files) correct_files(argv[1], json_object_get(root, "files"));
	else if (argc == 4) json_object_set_new(object, key, json_string(argv[3]));
	else json_object_del(object, key);
	json_object_del(root, "checksum");
	mt_must(run_json_checksum(root, &right));
	json_object_set_new(root, "checksum", json_hash(right));
	if (json_dump_file(root, path, JSON_INDENT(1) | JSON_REAL_PRECISION(17))) mt_die(MT_EX_IO, "%s", path);
	json_decref(root);
	return 0;
}
