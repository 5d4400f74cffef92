# Writes SYNOPSIS and the list of OPTIONS of a man page anew, from what its program prints with --options
# (shm/cli/README.md). What people have written of an option stays: it stands behind a line with .\" alone.
# usage: PROGRAM --options | awk -f man.awk -v program=PROGRAM - PAGE

BEGIN { FS = "\t" }

# "--micro SEQS|--batch SEQS" -> "Fl -micro Ar SEQS | Fl -batch Ar SEQS"
function macros(text,    n, i, word, line) {
	gsub(/\|--/, " | --", text)
	n = split(text, word, " ")
	for (i = 1; i <= n; i++) {
		if (word[i] ~ /^-/) word[i] = "Fl " substr(word[i], 2)
		else if (word[i] != "|") word[i] = (i > 1 || word[i] ~ /[A-Z]|^options$/ ? "Ar " : "Cm ") word[i]
		line = line (i > 1 ? " " : "") word[i]
	}
	return line
}

# a line for each operand, option with its value, and what is in brackets
function synopsis(form,    at) {
	sub(/ [<>].*/, "", form)
	at = index(form, program)
	if (at > 1) print ".Nm " substr(form, 1, at - 2)
	print ".Nm"
	form = substr(form, at + length(program) + 1)
	while (form != "") {
		if (match(form, /^\[[^]]*\]( |$)/)) print ".Op " macros(substr(form, 2, index(form, "]") - 2))
		else {
			match(form, form ~ /^-/ ? "^[^ ]+( [^-[ ][^ ]*)*" : "^[^ ]+")
			print "." macros(substr(form, 1, RLENGTH))
		}
		form = substr(form, RLENGTH + 1)
		sub(/^ /, "", form)
	}
}

# "." at the end, lines of at most 120 columns, none of which begins like a macro
function put_text(text,    n, i, word, line) {
	gsub(/\\/, "\\e", text)
	n = split(text (text ~ /\.$/ ? "" : "."), word, " ")
	for (i = 1; i <= n; i++) {
		if (line && length(line " " word[i]) > 120) {
			print line
			line = ""
		}
		line = line (line ? " " : word[i] ~ /^[.']/ ? "\\&" : "") word[i]
	}
	print line
}

function put_options(    i, name) {
	for (i = 1; i <= rows; i++) {
		name = names[i]
		print ".It Fl " (length(name) > 1 ? "-" : "") name (arg[name] ? " Ar " arg[name] : "")
		put_text(text[name])
		if (name in note) printf ".\\\"\n%s", note[name]
		delete note[name]
	}
	for (name in note) {
		print program ": the page has a note on --" name ", which is no option" >"/dev/stderr"
		exit failed = 65
	}
}

FNR == NR && $1 == "" { form[++forms] = $2; next }
FNR == NR {
	names[++rows] = $1
	arg[$1] = $3
	text[$1] = $6
	next
}

/^\.Sh / { skips = $0 == ".Sh SYNOPSIS" && forms; is_options = $0 == ".Sh OPTIONS" }
/^\.Sh SYNOPSIS$/ && forms {
	print
	for (i = 1; i <= forms; i++) synopsis(form[i])
}
skips { next }
is_options && /^\.Bl / { depth++ }
is_options && /^\.El/ && !--depth {
	put_options()
	is_options = 0
}
is_options && depth == 1 && /^\.It Fl / {
	split($0, word, " ")
	option = word[3]
	sub(/^-/, "", option)
	is_note = 0
	next
}
is_options && depth && is_note { note[option] = note[option] $0 "\n"; next }
is_options && depth && /^\.\\"$/ { is_note = 1; next }
is_options && depth && !/^\.Bl / { next }
{ print }

END { exit failed }
