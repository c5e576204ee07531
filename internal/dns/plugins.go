package dns

import (
	// Each import registers a plugin with CoreDNS. The package core/plugin would import all sixty plugins, with the
	// clients of three clouds.
	_ "github.com/coredns/coredns/plugin/acl"
	_ "github.com/coredns/coredns/plugin/autopath"
	_ "github.com/coredns/coredns/plugin/bufsize"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/debug"
	_ "github.com/coredns/coredns/plugin/dns64"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/file"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/minimal"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/rewrite"
	_ "github.com/coredns/coredns/plugin/template"
	_ "github.com/coredns/coredns/plugin/transfer"
)

// Plugins returns the names that a Corefile may use, in the order in which a query passes them, whatever their order in
// the Corefile. It is the order of CoreDNS's own build. So prometheus, errors and log see the answers of all later plugins.
// rewrite and autopath change the name for later plugins. acl comes before all plugins that answer, and cache before all
// slow plugins. Two plugins are ours: clients counts the questions to upstreams, names answers for the zones of --zone.
func Plugins() []string {
	return []string{
		"reload", "bufsize", "debug", "ready", "health", "prometheus", "errors", "log",
		"dns64", "loadbalance", "rewrite", "autopath", "acl", "cache", "minimal",
		"template", "transfer", "hosts", "kubernetes", "names", "file", "loop", "clients", "forward",
	}
}
