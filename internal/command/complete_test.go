package command

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestOffer: a word is completed step by step: a kind, a namespace or a name, and a name in that namespace.
func TestOffer(t *testing.T) {
	names := func(resource, namespace string) []string {
		return map[string][]string{
			"nodes ": {"node-1", "node-2"}, "namespaces ": {"shop", "back"}, "pods shop": {"cart", "web-1"}, "pods back": {"db"}, "services shop": {"web"},
		}[resource+" "+namespace]
	}
	places := []Completion{{Prefix: "pod/", Resource: "pods", Bare: true}, {Prefix: "node/", Resource: "nodes"}, {Prefix: "outside"}}
	plain := []Completion{{Resource: "pods", Bare: true}}
	strict := []Completion{{Resource: "services"}}
	for _, c := range []struct {
		word, want string
		more       bool
		ways       []Completion
	}{
		{"", "pod/ node/ outside", true, places},
		{"o", "outside", false, places},
		{"pod/", "pod/cart pod/web-1 pod/shop/ pod/back/", true, places},
		{"pod/w", "pod/web-1", false, places},
		{"pod/back/", "pod/back/db", false, places},
		{"node/", "node/node-1 node/node-2", false, places},
		{"svc/", "", false, places},
		{"", "cart web-1 shop/ back/", true, plain},
		{"sh", "shop/", true, plain},
		{"shop/w", "shop/web-1", false, plain},
		{"", "shop/ back/", true, strict},
		{"none/", "", false, strict},
	} {
		got, directive := offer(c.word, c.ways, "shop", names)
		if strings.Join(got, " ") != c.want || directive&cobra.ShellCompDirectiveNoSpace != 0 != c.more || directive&cobra.ShellCompDirectiveNoFileComp == 0 {
			t.Errorf("%q: %q, directive %d; want %q, more %v", c.word, got, directive, c.want, c.more)
		}
	}
}
