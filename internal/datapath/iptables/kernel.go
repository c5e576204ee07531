package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// A Variant is one of the two sets of programs, each with its own rules in the kernel.
type Variant uint8

// The variants. Auto takes the one whose rules kubelet or others use already, as
// kube-proxy's images do, and nf_tables where there are none.
const (
	Auto Variant = iota
	NFT
	Legacy
)

// String returns what the programs' names have: "nft", "legacy".
func (v Variant) String() string { return [...]string{"auto", "nft", "legacy"}[v] }

// lockSeconds is how long iptables waits for the lock that its programs share.
const lockSeconds = "30"

// A kernel runs the programs.
type kernel struct {
	fail func() error
}

func program(v Variant, is4 bool, what string) string {
	name := "iptables"
	if !is4 {
		name = "ip6tables"
	}
	return name + "-" + v.String() + "-" + what
}

// families are those that the kernel has.
func families() []bool {
	if _, err := os.Stat("/proc/sys/net/ipv6"); err != nil {
		return []bool{true}
	}
	return []bool{true, false}
}

// A held is what the kernel holds of one family.
type held struct {
	chains map[chain][]string // ours; nil rules: it is not there
	hooks  []hook             // rules in others' chains that lead to ours
	others map[string]int     // rules and chains of others, by table
	rules  int                // of everybody
	hints  bool               // kubelet uses this variant
}

// read asks for everything.
func (k *kernel) read(ctx context.Context, v Variant, is4 bool) (*held, error) {
	h := &held{chains: map[chain][]string{}, others: map[string]int{}}
	if v == Legacy {
		// The program would make the kernel load tables that are not there.
		names := "/proc/thread-self/net/ip_tables_names"
		if !is4 {
			names = "/proc/thread-self/net/ip6_tables_names"
		}
		if text, err := os.ReadFile(names); err != nil || len(bytes.TrimSpace(text)) == 0 {
			return h, nil
		}
	}
	out, err := k.run(ctx, nil, program(v, is4, "save"))
	if err != nil {
		return nil, err
	}
	h.parse(string(out))
	return h, nil
}

func (h *held) parse(text string) {
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
			h.others[table] += 0
		case strings.HasPrefix(line, ":"):
			name, policy, _ := strings.Cut(line[1:], " ")
			h.hints = h.hints || table == "mangle" && (name == "KUBE-IPTABLES-HINT" || name == "KUBE-KUBELET-CANARY")
			switch c := (chain{table, name}); {
			case ours(c):
				h.chains[c] = []string{}
			case !strings.HasPrefix(policy, "ACCEPT"):
				h.others[table]++ // a chain of somebody, or a policy
			}
		case strings.HasPrefix(line, "-A "):
			name, spec, _ := strings.Cut(line[3:], " ")
			h.rules++
			if c := (chain{table, name}); ours(c) {
				h.chains[c] = append(h.chains[c], spec)
			} else if _, jump, ok := strings.Cut(spec, "-j "); ok && ours(chain{table, jump}) {
				h.hooks = append(h.hooks, hook{c, spec})
			} else {
				h.others[table]++
			}
		}
	}
}

// restore applies text, which has one transaction for each COMMIT.
func (k *kernel) restore(ctx context.Context, v Variant, is4 bool, text string) error {
	if k.fail != nil {
		if err := k.fail(); err != nil {
			return err
		}
	}
	_, err := k.run(ctx, strings.NewReader(text), program(v, is4, "restore"), "--noflush", "-w", lockSeconds)
	return err
}

func (k *kernel) run(ctx context.Context, stdin *strings.Reader, name string, args ...string) ([]byte, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return nil, fmt.Errorf("the program %s is not installed [apt-get install iptables]", name)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	if stdin != nil {
		cmd.Stdin = stdin
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return nil, fmt.Errorf("%s: %w: %s [needs root and a kernel with nf_tables or ip_tables]", name, err, line)
	}
	return out, nil
}

// choose finds out which variant is in use.
func (k *kernel) choose(ctx context.Context) (Variant, error) {
	count := map[Variant]int{}
	var errs []error
	for _, v := range []Variant{NFT, Legacy} {
		h, err := k.read(ctx, v, true)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		count[v] = h.rules
		if len(h.chains[chain{nat, recordings}]) > 0 || h.hints {
			return v, nil
		}
	}
	if len(errs) == 2 {
		return NFT, errors.Join(errs...)
	}
	if count[Legacy] > count[NFT] {
		return Legacy, nil
	}
	return NFT, nil
}
