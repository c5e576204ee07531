package nftables

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"text/template"

	"github.com/google/nftables"
)

//go:embed ruleset.nft.tmpl
var rulesetText string

// program is the constant ruleset for one mark.
type program struct {
	mark   uint32
	marker string // the empty chain that says which program is loaded
	// liberal says that packets which conntrack cannot place are let through. The node
	// decides; load asks it.
	liberal bool
}

// markLiberal is the end of the marker of a program that is liberal.
const markLiberal = "-liberal"

func newProgram(mark uint32) (*program, error) {
	p := &program{mark: mark}
	text, err := p.text(nil)
	if err != nil {
		return nil, err
	}
	// The rules of the ways belong to the program as well.
	sum := sha256.New()
	sum.Write([]byte(text))
	fmt.Fprintf(sum, "%+v", (howAll | howSticky | 1).rules(mark))
	p.marker = markerPrefix + hex.EncodeToString(sum.Sum(nil))[:12]
	return p, nil
}

// text returns the program as nft reads it. reload names the chains that are there
// and whose rules must go first.
func (p *program) text(reload []string) (string, error) {
	t, err := template.New("ruleset.nft").Option("missingkey=error").Parse(rulesetText)
	if err != nil {
		return "", fmt.Errorf("parse embedded ruleset: %w", err)
	}
	marker := p.marker
	if marker == "" {
		marker = markerPrefix + "unnamed" // while its hash is taken
	}
	var out strings.Builder
	err = t.Execute(&out, map[string]any{
		"Table": tableName, "Marker": marker, "Mark": fmt.Sprintf("%#x", p.mark),
		"Outside": outsideOffset, "Reject": howReject, "Drop": howDrop, "Reload": reload,
		"DropInvalid": !p.liberal,
	})
	return out.String(), err
}

// load makes the kernel run the program, even if it seems to be there if again is set. It returns whether it had to: then the ways
// must be written again. The elements stay, so that a new version of the agent takes
// over what an old one left; only if the maps are of another shape does it start anew.
func (p *program) load(ctx context.Context, k *kernel, again bool) (loaded bool, err error) {
	there, err := k.chains()
	if err != nil {
		return false, err
	}
	p.marker = strings.TrimSuffix(p.marker, markLiberal)
	if p.liberal = liberal(); p.liberal {
		p.marker += markLiberal
	}
	if there[p.marker] && !again {
		return false, nil
	}
	var reload []string
	for _, name := range builtin {
		if there[name] {
			reload = append(reload, name)
		}
	}
	text, err := p.text(reload)
	if err != nil {
		return false, err
	}
	for name := range there {
		if strings.HasPrefix(name, markerPrefix) && name != p.marker {
			text += fmt.Sprintf("delete chain inet %s %s\n", tableName, name)
		}
	}
	if err = k.nft(ctx, text); err != nil && len(there) > 0 {
		fresh, terr := p.text(nil)
		if terr != nil {
			return false, terr
		}
		err = k.nft(ctx, fmt.Sprintf("delete table inet %s\n%s", tableName, fresh))
	}
	if err != nil {
		return false, fmt.Errorf("load program: %w", err)
	}
	return true, nil
}

// liberal reports whether the node takes TCP packets out of window for valid.
func liberal() bool {
	value, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && strings.TrimSpace(string(value)) != "0"
}

// chains returns the names of the chains in our table; none if there is no table.
func (k *kernel) chains() (map[string]bool, error) {
	c, err := k.conn()
	if err != nil {
		return nil, err
	}
	all, err := c.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		k.close() // answers may be left unread
		return nil, fmt.Errorf("list chains: %w [needs root and a kernel with nf_tables]", err)
	}
	names := map[string]bool{}
	for _, ch := range all {
		if ch.Table.Name == tableName {
			names[ch.Name] = true
		}
	}
	return names, nil
}

// Probe reports what keeps the datapath from working here: no rights, no nf_tables, no
// nft. It changes nothing.
func (d *Datapath) Probe() error {
	if _, err := exec.LookPath("nft"); err != nil {
		return errNoNFT
	}
	_, err := d.kernel.chains()
	return err
}

var errNoNFT = errors.New("the program nft is not installed [apt-get install nftables]")

// nft runs the nft program on text, in one transaction.
func (k *kernel) nft(ctx context.Context, text string) error {
	if k.fail != nil {
		if err := k.fail(); err != nil {
			return err
		}
	}
	path, err := exec.LookPath("nft")
	if err != nil {
		return errNoNFT
	}
	cmd := exec.CommandContext(ctx, path, "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		line, _, _ := strings.Cut(strings.TrimSpace(stderr.String()), "\n")
		return fmt.Errorf("nft: %w: %s [needs root and a kernel with nf_tables, 5.13 or later]", err, line)
	}
	return nil
}
