package takeover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// iptables' tables that kube-proxy writes to.
var iptablesTables = []string{"filter", "nat", "mangle"}

// A variant is one of the four rule sets that programs named iptables know.
type variant struct {
	family  string // the program: "iptables" or "ip6tables"
	command string // "iptables-nft" or "iptables-legacy"
	there   func() (bool, error)
}

func (v variant) program(what string) string {
	return v.family + strings.TrimPrefix(v.command, "iptables") + "-" + what
}

// variants says for each rule set how to find out, without waking the kernel's part of
// it, whether it may have chains of kube-proxy.
func variants() []variant {
	var all []variant
	for _, f := range []struct {
		program string
		family  nftables.TableFamily
		names   string
	}{
		{"iptables", nftables.TableFamilyIPv4, "ip_tables_names"},
		{"ip6tables", nftables.TableFamilyIPv6, "ip6_tables_names"},
	} {
		all = append(all,
			variant{f.program, "iptables-nft", func() (bool, error) { return hasChains(f.family) }},
			variant{f.program, "iptables-legacy", func() (bool, error) { return hasTables(f.names) }})
	}
	return all
}

// hasChains reports whether one of iptables-nft's tables has a chain of kube-proxy that
// is not ours by adoption.
func hasChains(family nftables.TableFamily) (bool, error) {
	chains, err := (&nftables.Conn{}).ListChainsOfTableFamily(family)
	if err != nil {
		return false, fmt.Errorf("list the chains of nf_tables: %w", err)
	}
	adopted := slices.ContainsFunc(chains, func(c *nftables.Chain) bool { return c.Table.Name == ourTable && c.Name == ourChain })
	return slices.ContainsFunc(chains, func(c *nftables.Chain) bool {
		return slices.Contains(iptablesTables, c.Table.Name) && isKubeProxys(c.Name) && (!adopted || slices.Contains(unusedNames, c.Name))
	}), nil
}

// hasTables reports whether the kernel has tables of iptables-legacy in our network
// namespace. To ask iptables-legacy itself would make them.
func hasTables(file string) (bool, error) {
	text, err := os.ReadFile("/proc/thread-self/net/" + file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // a kernel without them
	}
	return len(bytes.TrimSpace(text)) > 0, err
}

// findChains finds what kube-proxy writes in its modes iptables and ipvs.
func (k *KubeProxy) findChains(ctx context.Context) ([]Remain, error) {
	var all []Remain
	for _, v := range variants() {
		if there, err := v.there(); err != nil || !there {
			if err != nil {
				return nil, err
			}
			continue
		}
		text, err := v.removal(ctx)
		if err != nil {
			return nil, err
		}
		if text != "" {
			all = append(all, Remain{"chains KUBE-* of " + v.program("save"), v.remove})
		}
	}
	return all, nil
}

// removal returns what the variant's restore program must read.
func (v variant) removal(ctx context.Context) (string, error) {
	saved, err := run(ctx, "", v.program("save"))
	if err != nil {
		return "", err
	}
	return removal(saved), nil
}

// remove reads the rules again: some seconds may have passed since they were found.
func (v variant) remove(ctx context.Context) error {
	text, err := v.removal(ctx)
	if err != nil || text == "" {
		return err
	}
	_, err = run(ctx, text, v.program("restore"), "--noflush", "--wait", "5")
	return err
}

// run starts a program in the network namespace of this thread.
func run(ctx context.Context, input, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	err := cmd.Run()
	if errors.Is(err, exec.ErrNotFound) {
		return "", fmt.Errorf("%w [install iptables, or run kube-proxy --cleanup on the node]", err)
	}
	if err != nil {
		words := strings.Join(strings.FieldsFunc(said.String(), func(r rune) bool { return r == '\n' }), "; ")
		return "", fmt.Errorf("run %s: %w: %s", program, err, words)
	}
	return out.String(), nil
}
