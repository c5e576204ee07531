package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/command"
)

func TestDNSShowsAndRefuses(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "Corefile")
	if err := os.WriteFile(bad, []byte(". {\n errors\n whoami\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	good := filepath.Join(dir, "good")
	if err := os.WriteFile(good, []byte(".:53 {\n errors\n forward . 192.0.2.53\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{[]string{"--show-corefile", "--cluster-domain", "k8s.test", "--dns-port", "1053"}, 0, "kubernetes k8s.test in-addr.arpa", ""},
		{[]string{"--show-corefile", "--conf", bad}, 0, "whoami", ""},
		{[]string{"--check", good}, 0, "  forward . 192.0.2.53                               " + good + ":3\nnote: no acl", ""},
		{[]string{"--check", good, "--zone", "example.org"}, 0, "\nexample.org:8053\n", ""},
		{[]string{"--check", good, "--zone", "*.org"}, 1, "", "is no name"},
		{[]string{"--check", bad}, 1, "cannot serve: " + bad + `:3: plugin "whoami" is not built in`, ""},
		{[]string{"--check", "-"}, 1, "stdin has no server block", ""},
		{[]string{"--check", "/nonexistent/Corefile"}, 1, "", "no such file"},
		{[]string{"--conf", bad}, 1, "", "plugin \"whoami\" is not built in\nhint: built in are: acl autopath"},
		{[]string{"--conf", filepath.Join(dir, "none")}, 1, "", "no such file"},
		{[]string{"--kubeconfig", "a", "--master", "b"}, 1, "", "give one"},
		{[]string{"--dns-port", "70000"}, 1, "", "--dns-port"},
		{[]string{"extra"}, 1, "", "extra"},
	} {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), command.Env{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr}, append([]string{"dns"}, c.args...))
		if code != c.code || !strings.Contains(stdout.String(), c.stdout) || !strings.Contains(stderr.String(), c.stderr) {
			t.Errorf("%v: status %d, want %d\nstdout: %s\nstderr: %s", c.args, code, c.code, &stdout, &stderr)
		}
		if n := strings.Count(stderr.String(), "\n"); code != 0 && c.stderr != "" && n != 1+strings.Count(stderr.String(), "\nhint: ") {
			t.Errorf("%v: want one line, and one with a hint, got %q", c.args, &stderr)
		}
	}
}
