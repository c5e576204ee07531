package main

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairway-net/fairway/internal/command"
	"github.com/fairway-net/fairway/internal/testing/clitest"
)

// TestHelp: every command's help text is a golden file, with an example, and names what its flags take.
func TestHelp(t *testing.T) {
	clitest.Help(t, newRoot(command.Env{Version: "v0.1.0"}), filepath.Join("testdata", "help"), *update, "completion")
	_, help, _ := fairway(t, "agent", "--help")
	for _, want := range []string{"\nExamples:\n", "\nMode:\n", "\nAPI server:\n", "\nNode settings:\n", "--cni-bin-dir dir ", "--log-format format "} {
		if !strings.Contains(help, want) {
			t.Errorf("fairway agent --help lacks %q:\n%s", want, help)
		}
	}
}

// TestDidYouMean: a misspelt flag has a hint.
func TestDidYouMean(t *testing.T) {
	fails(t, "unknown flag: --clustercidr\nhint: did you mean --cluster-cidr? See fairway agent --help", "agent", "--clustercidr", "10.0.0.0/8")
	fails(t, "unknown command \"dum\"\nhint: did you mean fairway dump?", "dum")
	fails(t, "unknown command \"bosh\"\nhint: did you mean fairway completion bash?", "completion", "bosh")
	fails(t, "unknown command \"frobnicate\"\nhint: fairway --help lists the commands", "frobnicate")
	fails(t, "unknown flag: --zzz\nhint: fairway dump --help lists all flags", "dump", "--zzz")
}

// TestPlugin: called as kubectl's plugin, it names itself so.
func TestPlugin(t *testing.T) {
	var out, errs strings.Builder
	code := run(t.Context(), command.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Program: "kubectl-fairway"}, []string{"status", "--help"})
	if code != 0 || !strings.Contains(out.String(), "kubectl fairway status [NODE") {
		t.Errorf("status %d: %s%s", code, &out, &errs)
	}
	out.Reset()
	code = run(t.Context(), command.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Program: "kubectl_complete-fairway"}, []string{"explain", "--from", "o"})
	if code != 0 || !strings.Contains(out.String(), "\noutside\n:4\n") {
		t.Errorf("completion for kubectl: status %d: %s%s", code, &out, &errs)
	}
	t.Setenv("KUBECONFIG", "/nonexistent/config")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	code = run(t.Context(), command.Env{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errs, Program: "kubectl-fairway"}, []string{"status"})
	if code != 2 || !strings.Contains(errs.String(), "no kubeconfig at") {
		t.Errorf("status %d: %s", code, &errs)
	}
}

// TestStatusForbidden: who may not read all agents, as an agent's pod, hears what else to ask.
func TestStatusForbidden(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"pods is forbidden"}`))
	}))
	defer server.Close()
	code, out, err := fairway(t, "status", "--cluster", "--master", server.URL)
	if code != 2 || out != "" || !strings.Contains(err, "is forbidden\nhint: ") || !strings.Contains(err, "kubectl fairway status") {
		t.Errorf("status %d: %s%s", code, out, err)
	}
}

// TestCompletion: values of flags are offered, and the scripts are made.
func TestCompletion(t *testing.T) {
	prints(t, "userspace\nebpf\nauto\n", "__complete", "agent", "--proxy-mode", "")
	prints(t, "outside\n", "__complete", "explain", "--from", "")
	for _, part := range []string{"dns", "controller", "speaker"} {
		prints(t, "text\njson\n", "__complete", part, "--log-format", "")
	}
	prints(t, "complete -o default -F __start_fairway fairway", "completion", "bash")
}
