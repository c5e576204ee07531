package cluster_test

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/fairway-net/fairway/lab/fabric"
)

// TestUndo takes every way to Fairway and back as the documents describe it, by their very
// commands, and compares the node with what it was before. TestKubeadm takes the ways that begin with other programs.
//
//	deploy/README.md, docs/{operations,dns}.md ── sh blocks ──> the overlay's directory ──> one node
//	                                                   before ── state ── after: nothing is left
func TestUndo(t *testing.T) {
	beside(t, 1)
	u := newUndo(t)
	for _, mode := range []string{"userspace", "nftables"} {
		t.Run(mode, func(t *testing.T) { u.in(t).removal(mode) })
	}
	t.Run("iptables, killed half-way", func(t *testing.T) { u.in(t).halfWay() })
	t.Run("all components", func(t *testing.T) { u.in(t).everything() })
	for name := range u.docs {
		if !u.followed[name] && !slices.Contains(followedByKubeadm, name) {
			t.Errorf("no test runs the commands %q", name)
		}
	}
}

// newUndo makes a lab of one node without a CNI plugin, proxy or DNS, so every later program on the node is Fairway's.
func newUndo(t *testing.T) *undo {
	t.Helper()
	l := newLab(t)
	l.run("up", "--nodes", "1", "--api-port", strconv.Itoa(l.port), "--deploy", "", "--image", built.image, "--images-dir", built.images)
	u := undoIn(l)
	u.before = u.state()
	return u
}

// undoIn returns an undo for a lab that runs.
func undoIn(l *lab) *undo {
	l.Helper()
	u := &undo{lab: l, dir: l.TempDir(), docs: docs(l.T), followed: map[string]bool{}}
	if err := os.CopyFS(filepath.Join(u.dir, "deploy"), os.DirFS(built.deploy)); err != nil {
		l.Fatal(err)
	}
	u.copyImage()
	return u
}

// An undo is a lab in which an overlay in dir installs and removes Fairway.
type undo struct {
	*lab
	dir      string
	docs     map[string]string
	followed map[string]bool // the executed commands, by name
	before   map[string]string
	image    string // the image's tag
	plainCNI bool   // the pod network is not Fairway's
}

// copyImage names the image in the copy of deploy/, as deploy/README.md says.
func (u *undo) copyImage() {
	u.Helper()
	text, err := os.ReadFile(strings.TrimSuffix(built.image, ".tar") + ".yaml")
	if err == nil {
		err = os.WriteFile(filepath.Join(u.dir, "deploy/image/kustomization.yaml"), text, 0o644)
	}
	if err != nil {
		u.Fatal(err)
	}
	u.image = regexp.MustCompile(`newTag: (\S+)`).FindStringSubmatch(string(text))[1]
}

func (u *undo) in(t *testing.T) *undo {
	c := *u
	c.lab = u.lab.in(t)
	return &c
}

// shBlock matches a block of commands in a document, with the remark above that names it.
var shBlock = regexp.MustCompile("(?s)<!-- test: ([^>]*) -->\n```sh\n(.*?)```")

// docs reads the commands in the documents. Every block of a shell must have a name, except in docs/dns.md, which also
// has other blocks.
func docs(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, doc := range []string{"deploy/README.md", "docs/operations.md", "docs/dns.md", "docs/migration.md"} {
		text, err := os.ReadFile(filepath.Join("../..", doc))
		if err != nil {
			t.Fatal(err)
		}
		named := shBlock.FindAllStringSubmatch(string(text), -1)
		if all := strings.Count(string(text), "```sh\n"); len(named) == 0 || all != len(named) && doc != "docs/dns.md" {
			t.Errorf("%s: %d of %d blocks of commands have a name for this test", doc, len(named), all)
		}
		for _, m := range named {
			found[m[1]] = m[2]
		}
	}
	return found
}

// follow runs a document's commands in the overlay's directory, as a reader does.
func (u *undo) follow(name string) {
	u.Helper()
	commands := u.docs[name]
	if commands == "" {
		u.Fatalf("no document has the commands %q", name)
	}
	u.followed[name] = true
	u.shell(strings.ReplaceAll(commands, "fairway:VERSION", "fairway:"+u.image))
}

// shell runs commands with kubectl in PATH, as the cluster's administrator.
func (u *undo) shell(commands string) string {
	u.Helper()
	cmd := exec.CommandContext(u.Context(), "bash", "-euc", commands)
	cmd.Dir = u.dir
	cmd.Env = append(os.Environ(), "KUBECONFIG="+filepath.Join(u.lab.dir(), "kubeconfig"), "PATH="+u.bin()+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		u.Fatalf("%s\n%v:\n%s", commands, err, out)
	}
	return string(out)
}

// bin returns a directory with kubectl and fairway.
func (u *undo) bin() string {
	dir := filepath.Join(u.dir, "bin")
	_ = os.Mkdir(dir, 0o755)
	for name, program := range map[string]string{"kubectl": built.lab, "fairway": built.fairway} {
		if err := os.Symlink(program, filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			u.Fatal(err)
		}
	}
	return dir
}

// overlay writes the overlay as deploy/README.md shows it.
func (u *undo) overlay(resources string, components ...string) {
	u.Helper()
	for i, c := range components {
		components[i] = "deploy/components/" + c
	}
	plan := fabric.Plan{Family: fabric.IPv4}
	text := fmt.Sprintf(`apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
components: [%s]
patches:
- target: {kind: ConfigMap, name: fairway-agent}
  patch: |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: fairway-agent}
    data: {FAIRWAY_API_SERVER: %q, CLUSTER_CIDR: %q}
`, resources, strings.Join(components, ", "), plan.APIServer(), plan.Pods()[0])
	if err := os.WriteFile(filepath.Join(u.dir, "kustomization.yaml"), []byte(text), 0o644); err != nil {
		u.Fatal(err)
	}
}

const applied = "kubectl apply -k .\nkubectl -n kube-system rollout status daemonset/fairway-agent --timeout=60s"

// removal installs Fairway in a mode, and removes it.
func (u *undo) removal(mode string) {
	components := []string{"pod-network"}
	if mode != "nftables" {
		components = append(components, mode)
	}
	u.overlay("deploy/agent", components...)
	u.shell(applied)
	u.there(mode)
	u.follow("removal")
	u.same()
}

// there checks that the comparison detects the agent's work in the mode, and that of its pod network.
func (u *undo) there(mode string) {
	u.Helper()
	table := map[string]string{"nftables": "table inet fairway", "iptables": "table inet fairway-iptables", "userspace": "table inet fairway-userspace"}[mode]
	wanted := map[string]string{"nf_tables": table + "\n", "files": "/opt/cni/bin/fairway-cni\n"}
	if u.plainCNI {
		delete(wanted, "files")
	}
	var now map[string]string
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) { // the pod network is not part of being ready
		now = u.state()
		if strings.Contains(now["nf_tables"], wanted["nf_tables"]) && strings.Contains(now["files"], wanted["files"]) || time.Now().After(end) {
			break
		}
	}
	for what, want := range wanted {
		if !strings.Contains(now[what], want) {
			u.Errorf("mode %s: %s has no %q:\n%s", mode, what, want, now[what])
		}
	}
}

// looks are commands that print parts of the node's state. Their output must be the same after an undo.
var looks = map[string]string{
	"nf_tables": `nft list ruleset 2>/dev/null | grep -E '^table|^	(chain|map|set)' | sed 's/ {$//'`,
	"iptables":  `(iptables-nft-save; ip6tables-nft-save) 2>/dev/null | grep '^-A' || true`,
	// The state of iptables-legacy: the tables in the kernel.
	"legacy":     `cat /proc/net/ip_tables_names /proc/net/ip6_tables_names 2>/dev/null || true`,
	"interfaces": `ls /sys/class/net`,
	"routes":     `ip -4 route show table all; ip -6 route show table all; ip rule; ip -6 rule`,
	"files":      `find /opt/cni /etc/cni /run/xtables.lock -not -type d 2>/dev/null; find /run/fairway -mindepth 1 2>/dev/null || true`,
	"bpf":        `find /sys/fs/bpf -mindepth 1 2>/dev/null || true`,
	"settings": `for f in ipv4/conf/all/route_localnet ipv4/conf/all/rp_filter ipv4/conf/all/arp_ignore ipv4/ip_nonlocal_bind; do
		echo $f $(cat /proc/sys/net/$f); done; cd /proc/sys/net/netfilter && grep . nf_conntrack_max nf_conntrack_buckets *timeout*`,
	"sockets": `ss -xlH | grep -o '@fairway[^ ]*' || true; ss -tulnH | grep -E ':(10256|10249|1027[0-9]) ' || true`,
}

// stays matches the remains of iptables that the documents mention. They are its lock, and the empty chains of the
// tables that iptables-nft has created.
var stays = regexp.MustCompile(`(?m)^(/run/xtables\.lock|\tchain (PREROUTING|INPUT|FORWARD|OUTPUT|POSTROUTING))\n`)

// state returns the node's state, by the names of looks.
func (u *undo) state() map[string]string {
	u.Helper()
	names := slices.Sorted(maps.Keys(looks))
	script := ""
	for _, name := range names {
		script += "echo '### " + name + "'\n(" + looks[name] + ")\n"
	}
	state := map[string]string{}
	for _, part := range strings.Split(u.run("node", "1", "--", "bash", "-c", script), "### ")[1:] {
		name, text, _ := strings.Cut(part, "\n")
		state[name] = stays.ReplaceAllString(text, "")
	}
	if len(state) != len(looks) {
		u.Fatalf("the node shows %v, want %v", slices.Sorted(maps.Keys(state)), names)
	}
	return state
}

// without joins the lines that text does not contain.
func without(lines []string, text string) string {
	have := strings.SplitAfter(text, "\n")
	return strings.Join(slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return slices.Contains(have, line) }), "")
}

// same fails the test for each difference from the node's state before Fairway.
func (u *undo) same(but ...string) {
	u.Helper()
	now := u.state()
	for what, was := range u.before {
		lines := slices.DeleteFunc(strings.SplitAfter(now[what], "\n"), func(line string) bool {
			return slices.ContainsFunc(but, func(b string) bool { return strings.Contains(line, b) })
		})
		if added, gone := without(lines, was), without(strings.SplitAfter(was, "\n"), now[what]); added+gone != "" {
			u.Errorf("%s: the undo leaves\n%s\nand what is gone is\n%s", what, added, gone)
		}
	}
	out := u.run("kubectl", "-n", "kube-system", "get", "serviceaccounts,configmaps,daemonsets,deployments,clusterroles,clusterrolebindings", "-o", "name")
	if strings.Contains(out, "fairway") {
		u.Errorf("objects are left:\n%s", out)
	}
}
