/* fence-stop FILE FUNCTION HITS PROGRAM ARGS...: runs a stage and stops it (SIGSTOP) when its main thread enters its
 * own FUNCTION for the HITS-th time; its other threads finish their work first. Then writes its pid to FILE. Exits with
 * the stage's code, or 128 + n for signal n. 77: no ptrace here, or no breakpoints for this CPU. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"

#if !defined __x86_64__
int main(void) { return 77; }
#else

enum { BREAKPOINT = 0xcc }; /* int3 */

static _Noreturn void fail(const char *what, const char *which)
{
	fprintf(stderr, "fence-stop: %s: %s\n", which, what);
	exit(70);
}

/* The function's address in the file */
static uint64_t symbol(const char *path, const char *name)
{
	struct stat st;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st)) fail(strerror(errno), path);
	const char *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED) fail(strerror(errno), path);
	const Elf64_Ehdr *e = (const void *)p;
	const Elf64_Shdr *s = (const void *)(p + e->e_shoff);
	for (int i = 0; i < e->e_shnum; i++) {
		if (s[i].sh_type != SHT_SYMTAB) continue;
		const Elf64_Sym *sym = (const void *)(p + s[i].sh_offset);
		const char *names = p + s[s[i].sh_link].sh_offset;
		for (uint64_t j = 0; j < s[i].sh_size / sizeof *sym; j++)
			if (sym[j].st_value && !strcmp(names + sym[j].st_name, name)) return sym[j].st_value;
	}
	fail("no such function", name);
}

/* Where the program was loaded */
static uint64_t base(pid_t pid, const char *path)
{
	char maps[64], line[4096], file[4096];
	unsigned long long from;
	snprintf(maps, sizeof maps, "/proc/%d/maps", pid);
	FILE *f = fopen(maps, "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%llx-%*s %*s %*s %*s %*s %4095s", &from, file) == 2 && !strcmp(file, path)) {
			fclose(f);
			return from;
		}
	fail("is not mapped", path);
}

static void await(pid_t pid, int want)
{
	int status;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
	if (WIFSTOPPED(status) && WSTOPSIG(status) == want) return;
	if (WIFSTOPPED(status)) fail("stopped by another signal", strsignal(WSTOPSIG(status)));
	fprintf(stderr, "fence-stop: it ended before (status %x)\n", status);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

static void run_to(pid_t pid, uint64_t at, long hits)
{
	long word = ptrace(PTRACE_PEEKTEXT, pid, at, NULL), trap = (word & ~0xffl) | BREAKPOINT;
	struct user_regs_struct regs;
	while (hits-- > 0) {
		ptrace(PTRACE_POKETEXT, pid, at, trap);
		ptrace(PTRACE_CONT, pid, NULL, NULL);
		await(pid, SIGTRAP);
		ptrace(PTRACE_GETREGS, pid, NULL, &regs);
		if (regs.rip != at + 1) fail("a trap elsewhere", "SIGTRAP");
		regs.rip = at;
		ptrace(PTRACE_SETREGS, pid, NULL, &regs);
		ptrace(PTRACE_POKETEXT, pid, at, word);
		if (!hits) return;
		ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL);
		await(pid, SIGTRAP);
	}
}

int main(int argc, char **argv)
{
	char link[64], path[4096];
	int status;
	if (argc < 5) return 64;
	pid_t pid = fork_child();
	if (pid == 0) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(77);
		execvp(argv[4], argv + 4);
		_exit(127);
	}
	await(pid, SIGTRAP); /* the exec */
	snprintf(link, sizeof link, "/proc/%d/exe", pid);
	ssize_t n = readlink(link, path, sizeof path - 1);
	if (n < 0) fail(strerror(errno), link);
	path[n] = 0;
	run_to(pid, base(pid, path) + symbol(path, argv[2]), strtol(argv[3], NULL, 10));
	usleep(150000); /* other threads are not stopped yet */
	ptrace(PTRACE_DETACH, pid, NULL, SIGSTOP);
	FILE *f = fopen(argv[1], "w");
	if (!f) fail(strerror(errno), argv[1]);
	fprintf(f, "%d\n", pid);
	fclose(f);
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
#endif
