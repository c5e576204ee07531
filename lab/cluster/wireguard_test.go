package cluster_test

import (
	"path/filepath"
	"strings"
	"time"
)

// testKeyPolicy: with the component wireguard, an agent may write the annotation with its public key. It may only write
// into the Node of its token. RBAC alone would allow more, and the API server's own admission refuses it.
func (l *lab) testKeyPolicy() {
	l.Helper()
	dir := filepath.Join(built.deploy, "components", "wireguard")
	l.run("kubectl", "apply", "-f", filepath.Join(dir, "rbac.yaml"), "-f", filepath.Join(dir, "policy.yaml"))
	// kubectl reads an object before it patches, and agents read by list and watch.
	l.run("kubectl", "create", "clusterrole", "agent-gets-nodes", "--verb=get", "--resource=nodes")
	l.run("kubectl", "create", "clusterrolebinding", "agent-gets-nodes", "--clusterrole=agent-gets-nodes", "--serviceaccount=kube-system:fairway-agent")
	patch := func(of, node, kind, change string) []string {
		return agentPatches(of, node, "--type="+kind, "-p", change)
	}
	const mine = "an agent changes the Node that it runs on only"
	const one = "an agent changes one annotation of its Node only"
	key := `{"metadata":{"annotations":{"fairway.net/wireguard-public-key":"c2FtcGxlIGtleSwgMzIgYnl0ZXMgbG9uZyAgICAgICA="}}}`
	l.refusedBy(mine, patch("node-1", "node-2", "merge", key))
	l.eventually("patched", patch("node-1", "node-1", "merge", key)...)
	for change, want := range map[string]string{
		`{"metadata":{"labels":{"x":"y"}}}`:                                                        one,
		`{"metadata":{"labels":{"kubernetes.io/os":null}}}`:                                        one,
		`{"metadata":{"annotations":{"x":"y"}}}`:                                                   one,
		`{"metadata":{"annotations":{"volumes.kubernetes.io/x":"y"}}}`:                             one,
		`{"metadata":{"finalizers":["example.org/x"]}}`:                                            one,
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"y"}]}}`: one,
		`{"spec":{"unschedulable":true}}`:                                                          one,
		`{"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`:                                   one,
	} {
		l.refusedBy(want, patch("node-1", "node-1", "merge", change))
	}
	l.refusedBy(mine, patch("", "node-1", "merge", key))
	l.run(patch("node-1", "node-1", "merge", `{"metadata":{"annotations":{"fairway.net/wireguard-public-key":null}}}`)...)
	l.run("kubectl", "label", "node", "node-1", "example.org/by=administrator") // the policy does not restrict other users
	l.run("kubectl", "delete", "clusterrole,clusterrolebinding", "agent-gets-nodes")
	l.run("kubectl", "delete", "-f", filepath.Join(dir, "policy.yaml"), "-f", filepath.Join(dir, "rbac.yaml"))
}

// agentPatches returns a command that patches a Node with the rights of the agent on node of; empty: of no node.
func agentPatches(of, node string, args ...string) []string {
	as := []string{"kubectl", "--as=system:serviceaccount:kube-system:fairway-agent", "--as-group=system:serviceaccounts", "--as-group=system:authenticated"}
	if of != "" { // as in the token of a pod on that node
		as = append(as, "--as-user-extra=authentication.kubernetes.io/node-name="+of)
	}
	return append(append(as, "patch", "node", node), args...)
}

// refusedBy waits until a command is refused for this reason, because the API server learns of a new policy a moment
// later.
func (l *lab) refusedBy(want string, args []string) {
	l.Helper()
	var out string
	var err error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if out, err = l.try(args...); err != nil && strings.Contains(out, want) {
			return
		}
	}
	l.Errorf("fairway-lab %s: %v, not refused by %q: %s", strings.Join(args, " "), err, want, out)
}
