package toolbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/fairway-net/fairway/internal/image"
)

// AddIptables adds the nf_tables variant of iptables and ip6tables, their extensions, and links with their usual names.
// The agent's mode iptables uses the same variant.
func AddIptables(t *image.Tree) error {
	var at string
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, verb := range []string{"", "-save", "-restore"} {
			var err error
			if at, err = image.Find(family + "-nft" + verb); err != nil {
				return fmt.Errorf("%w [run `make deps`, or `apt-get install iptables`]", err)
			}
			t.Program(at)
			t.Link("/usr/local/bin/"+family+verb, at)
		}
	}
	extensions, err := filepath.Glob("/usr/lib/*/xtables/lib*.so")
	if err != nil || len(extensions) == 0 {
		return errors.New("no extensions of iptables in /usr/lib/*/xtables [run `make deps`, or `apt-get install iptables`]")
	}
	for _, e := range extensions {
		t.Plugin(e, at)
	}
	for _, file := range []string{"/etc/protocols", "/etc/services"} {
		if _, err := os.Stat(file); err == nil {
			t.Same(file)
		}
	}
	return nil
}
