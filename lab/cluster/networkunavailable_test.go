package cluster_test

// testNetworkUnavailable: the agent clears the condition NetworkUnavailable of its Node. Its token may change nothing else
// of the status, and no other Node.
func (l *lab) testNetworkUnavailable() {
	l.Helper()
	condition := func(kind, status string) string {
		return `{"status":{"conditions":[{"type":"` + kind + `","status":"` + status + `","reason":"Test","message":"m"}]}}`
	}
	status := []string{"get", "node", "node-1", "-o", `jsonpath={.status.conditions[?(@.type=="NetworkUnavailable")].reason}`}
	l.run("kubectl", "patch", "node", "node-1", "--subresource=status", "-p", condition("NetworkUnavailable", "True"))
	l.eventually("FairwayIsReady", append([]string{"kubectl"}, status...)...)
	l.eventually("no taints", "kubectl", "get", "node", "node-1", "-o", `go-template={{if .spec.taints}}{{.spec.taints}}{{else}}no taints{{end}}`)

	// kubectl reads an object before it patches.
	l.run("kubectl", "create", "clusterrole", "agent-gets-nodes", "--verb=get", "--resource=nodes,nodes/status")
	l.run("kubectl", "create", "clusterrolebinding", "agent-gets-nodes", "--clusterrole=agent-gets-nodes", "--serviceaccount=kube-system:fairway-agent")
	const mine = "an agent changes the Node that it runs on only"
	const one = "an agent changes one condition of its Node only"
	patch := func(of, node, change string) []string {
		return agentPatches(of, node, "--subresource=status", "-p", change)
	}
	l.eventually("patched", patch("node-1", "node-1", condition("NetworkUnavailable", "False"))...)
	l.refusedBy(mine, patch("node-1", "node-2", condition("NetworkUnavailable", "False")))
	l.refusedBy(mine, patch("", "node-1", condition("NetworkUnavailable", "False")))
	for _, change := range []string{
		condition("NetworkUnavailable", "True"),
		condition("Ready", "False"),
		condition("example.org/x", "True"),
		`{"status":{"addresses":[{"type":"ExternalIP","address":"203.0.113.9"}]}}`,
		`{"status":{"capacity":{"example.org/x":"1"}}}`,
		`{"metadata":{"labels":{"x":"y"}}}`,
		`{"metadata":{"annotations":{"x":"y"}}}`,
	} {
		l.refusedBy(one, patch("node-1", "node-1", change))
	}
	l.run("kubectl", "delete", "clusterrole,clusterrolebinding", "agent-gets-nodes")
}
