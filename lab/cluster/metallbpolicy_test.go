package cluster_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const aSpeaker = "--as=system:serviceaccount:kube-system:fairway-speaker"

// file writes objects into a file for kubectl.
func (l *lab) file(objects string) string {
	l.Helper()
	path := filepath.Join(l.TempDir(), "objects.yaml")
	if err := os.WriteFile(path, []byte(objects), 0o600); err != nil {
		l.Fatal(err)
	}
	return path
}

// inNamespace returns an object in a namespace, in one line.
func inNamespace(apiVersion, kind, namespace, name, rest string) string {
	return "apiVersion: " + apiVersion + "\nkind: " + kind + "\nmetadata: {namespace: " + namespace + ", name: " + name + "}\n" + rest + "\n---\n"
}

// metallbPolicies: the API server's own admission enforces the rules of MetalLB's webhook that concern several objects.
// It also refuses objects that a speaker has no reason to create.
func (l *lab) metallbPolicies() {
	stray := inNamespace("metallb.io/v1beta1", "L2Advertisement", "default", "stray", "spec: {}")
	l.input(stray, "kubectl", "apply", "-f", "-") // before the policies exist
	l.run("kubectl", "apply", "-f", filepath.Join(built.deploy, "pools/policy.yaml"))
	l.T.Run("namespace", func(t *testing.T) { l.in(t).metallbNamespace() })
	l.T.Run("profile", func(t *testing.T) { l.in(t).metallbProfile() })
	l.T.Run("speaker", func(t *testing.T) { l.in(t).speakerPolicy() })
}

// metallbNamespace: the API server refuses objects outside the namespace that Fairway reads. Objects from before are
// reported.
func (l *lab) metallbNamespace() {
	for kind, spec := range map[string]string{
		"IPAddressPool": "addresses: [192.0.2.0/30]", "L2Advertisement": "", "BGPAdvertisement": "", "BFDProfile": "", "Community": "", "BGPPeer": "myASN: 64512, peerASN: 64500, peerAddress: 192.0.2.254",
	} {
		version := "metallb.io/v1beta1"
		if kind == "BGPPeer" {
			version = "metallb.io/v1beta2"
		}
		file := l.file(inNamespace(version, kind, "default", "other", "spec: {"+spec+"}") + inNamespace(version, kind, "metallb-system", "right", "spec: {"+spec+"}"))
		l.refusedBy("objects of metallb.io count in namespace metallb-system only, not in default", []string{"kubectl", "create", "--dry-run=server", "-f", file})
		if out, _ := l.try("kubectl", "create", "--dry-run=server", "-f", file); strings.Count(out, "created (server dry run)") != 1 {
			l.Errorf("the %s in metallb-system is not accepted: %s", kind, out)
		}
	}
	out, _ := exec.Command(built.fairway, "status", "--load-balancers", "--kubeconfig", filepath.Join(l.dir(), "kubeconfig")).CombinedOutput()
	if want := "L2Advertisement default/stray has no effect"; !strings.Contains(string(out), want) {
		l.Errorf("fairway status --load-balancers does not say %q:\n%s", want, out)
	}
	l.run("kubectl", "-n", "default", "annotate", "l2advertisement", "stray", "changed=true") // existing objects may change
	l.run("kubectl", "-n", "default", "delete", "l2advertisement", "stray")
}

// metallbProfile: a BFDProfile cannot be deleted while a BGPPeer names it, except with its namespace.
func (l *lab) metallbProfile() {
	l.input(inNamespace("metallb.io/v1beta1", "BFDProfile", "metallb-system", "fast", "spec: {}")+
		inNamespace("metallb.io/v1beta1", "BFDProfile", "metallb-system", "unused", "spec: {}")+
		inNamespace("metallb.io/v1beta2", "BGPPeer", "metallb-system", "plain", "spec: {myASN: 64512, peerASN: 64500, peerAddress: 192.0.2.253}")+
		inNamespace("metallb.io/v1beta2", "BGPPeer", "metallb-system", "tor", "spec: {myASN: 64512, peerASN: 64500, peerAddress: 192.0.2.254, bfdProfile: fast}"), "kubectl", "apply", "-f", "-")
	remove := func(args ...string) []string {
		return append([]string{"kubectl", "-n", "metallb-system", "delete", "bfdprofile", "--timeout=30s"}, args...)
	}
	const used = "BGPPeer tor uses BFDProfile fast"
	l.refusedBy(used, remove("fast", "--dry-run=server"))
	l.refusedBy(used, remove("--all", "--dry-run=server"))
	l.run(remove("unused")...)
	l.run("kubectl", "-n", "metallb-system", "patch", "bgppeer", "tor", "--type=merge", "-p", `{"spec":{"bfdProfile":null}}`)
	l.eventually(`"fast" deleted`, remove("fast", "--dry-run=server")...) // the admission sees a new object a moment later
	l.run(remove("fast")...)
	l.run("kubectl", "-n", "metallb-system", "delete", "bgppeer", "--all")
	l.input(inNamespace("metallb.io/v1beta1", "BFDProfile", "metallb-system", "alone", "spec: {}"), "kubectl", "apply", "-f", "-")
	l.run(remove("alone")...) // no BGPPeer exists
}

// speakerPolicy: a speaker may create its own Secret, ConfigMap and Lease, and no others.
func (l *lab) speakerPolicy() {
	dir := filepath.Join(built.deploy, "components", "load-balancer")
	l.run("kubectl", "apply", "-f", filepath.Join(dir, "speaker-rbac.yaml"), "-f", filepath.Join(dir, "speaker-policy.yaml"))
	create := func(objects string) []string {
		return []string{"kubectl", "create", "--dry-run=server", aSpeaker, "-f", l.file(objects)}
	}
	object := func(apiVersion, kind, name, rest string) string {
		return inNamespace(apiVersion, kind, "metallb-system", name, rest)
	}
	const token = "type: kubernetes.io/service-account-token"
	l.refusedBy("a speaker makes no other of the secrets than fairway-speaker", create(object("v1", "Secret", "other", "")))
	l.refusedBy("a speaker makes no other of the configmaps than fairway-speaker-voters", create(object("v1", "ConfigMap", "other", "")))
	l.refusedBy("a speaker makes no other of the leases than fairway-speaker-vote", create(object("coordination.k8s.io/v1", "Lease", "other", "")))
	l.refusedBy("a speaker makes a Secret of type Opaque only", create(strings.Replace(object("v1", "Secret", "fairway-speaker", token), "name: fairway-speaker}", "name: fairway-speaker, annotations: {kubernetes.io/service-account.name: default}}", 1)))
	l.run(create(object("v1", "Secret", "fairway-speaker", "") + object("v1", "ConfigMap", "fairway-speaker-voters", "") + object("coordination.k8s.io/v1", "Lease", "fairway-speaker-vote", ""))...)
	l.run("kubectl", "-n", "metallb-system", "create", "secret", "generic", "of-an-administrator") // the policy does not restrict other users
	l.run("kubectl", "delete", "-f", filepath.Join(dir, "speaker-policy.yaml"), "-f", filepath.Join(dir, "speaker-rbac.yaml"))
}

// metallbNamespaceGoes: a BFDProfile in use does not prevent the deletion of its namespace.
func (l *lab) metallbNamespaceGoes() {
	l.input(inNamespace("metallb.io/v1beta1", "BFDProfile", "metallb-system", "fast", "spec: {}")+
		inNamespace("metallb.io/v1beta2", "BGPPeer", "metallb-system", "tor", "spec: {myASN: 64512, peerASN: 64500, peerAddress: 192.0.2.254, bfdProfile: fast}"), "kubectl", "apply", "-f", "-")
	l.refusedBy("BGPPeer tor uses BFDProfile fast", []string{"kubectl", "-n", "metallb-system", "delete", "bfdprofile", "fast", "--dry-run=server"})
	l.run("kubectl", "delete", "namespace", "metallb-system", "--timeout=90s")
}
