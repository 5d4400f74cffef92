/* Have tests/lib/python-server.py run a Python program, with the fds 0 to 2, directory, environment and arguments of
 * this process, and end as it ends: served-python PROGRAM ARGS..., the server's socket in PYTHON_SERVER. */
#include <err.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *path = getenv("PYTHON_SERVER");
	if (argc < 2 || !path || strlen(path) >= sizeof address.sun_path)
		errx(70, "expected a program, and a server's socket in PYTHON_SERVER");
	strcpy(address.sun_path, path);
	int fds[4] = {0, 1, 2, open(".", O_RDONLY | O_CLOEXEC)}, server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (connect(server, (struct sockaddr *)&address, sizeof address)) err(70, "%s", path);
	union {
		struct cmsghdr head;
		char room[CMSG_SPACE(sizeof fds)];
	} control = {.head = {.cmsg_len = CMSG_LEN(sizeof fds), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
	memcpy(CMSG_DATA(&control.head), fds, sizeof fds);
	struct iovec one = {.iov_base = "", .iov_len = 1};
	struct msghdr message = {.msg_iov = &one,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof control};
	if (sendmsg(server, &message, 0) != 1) err(70, "%s: sending fds", path);
	FILE *words = fdopen(dup(server), "w");
	fprintf(words, "%d%c", argc - 1, 0);
	for (char **word = argv + 1; *word; word++) fprintf(words, "%s%c", *word, 0);
	for (char **word = environ; *word; word++) fprintf(words, "%s%c", *word, 0);
	if (fclose(words) || shutdown(server, SHUT_WR)) err(70, "%s: sending arguments", path);
	/* whoever writes to a pipe of this process must notice when the program has closed it */
	close(0);
	close(1);
	int status;
	if (recv(server, &status, sizeof status, MSG_WAITALL) != sizeof status) errx(70, "%s: the server has ended", path);
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		raise(WTERMSIG(status));
	}
	return WEXITSTATUS(status);
}
