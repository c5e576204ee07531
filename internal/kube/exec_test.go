package kube

import (
	"errors"
	"testing"
)

func TestNoExec(t *testing.T) {
	for text, want := range map[string]bool{
		`unable to upgrade: pods "agent" is forbidden: User "reader" cannot create resource "pods/exec" in API group "" in the namespace "kube-system"`: true,
		`pods "agent" is forbidden: cannot exec into or attach to a privileged container`:                                                               false,
		`pods is forbidden: User "reader" cannot list resource "pods" in API group "" in the namespace "kube-system"`:                                   false,
		`pods "agent" not found`: false,
	} {
		if got := noExec(errors.New(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

func TestAgentOn(t *testing.T) {
	pods := []AgentPod{
		{Node: "a", Name: "agent-a", Running: true, State: "Running"},
		{Node: "b", State: "none"},
		{Node: "c", Name: "agent-c", State: "CrashLoopBackOff"},
	}
	for node, want := range map[string]string{
		"a": "",
		"b": "no agent runs on b [fairway status]",
		"c": "the agent on c is CrashLoopBackOff [fairway status]",
		"d": `there is no node "d" [kubectl get nodes lists them]`,
	} {
		got := ""
		pod, err := AgentOn(pods, node)
		if err != nil {
			got = err.Error()
		}
		if got != want || err == nil && pod.Name != "agent-"+node {
			t.Errorf("%s: %v, %q, want %q", node, pod, got, want)
		}
	}
}
