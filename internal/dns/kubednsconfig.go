package dns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A stub is a domain with servers of its own.
type stub struct {
	Domain  string
	Servers string // arguments of forward
}

// domainName matches a domain that means a zone, and nothing else, in a Corefile.
var domainName = regexp.MustCompile(`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?$`)

// readKubeDNS reads the ConfigMap of kube-dns, the cluster DNS before CoreDNS. GKE still has that format: the key
// stubDomains is a JSON object with a list of servers for each domain, and the key upstreamNameservers is a list of
// servers that replace those of resolv.conf.
func readKubeDNS(dir, clusterDomain string) (stubs []stub, upstreams string, err error) {
	var domains map[string][]string
	if err := readJSON(filepath.Join(dir, "stubDomains"), &domains); err != nil {
		return nil, "", err
	}
	for domain, servers := range domains {
		list, err := serverList(servers)
		switch {
		case err != nil:
			return nil, "", fmt.Errorf("ConfigMap kube-dns, stub domain %q: %w", domain, err)
		case !domainName.MatchString(domain), strings.TrimSuffix(domain, ".") == strings.TrimSuffix(clusterDomain, "."):
			return nil, "", fmt.Errorf("ConfigMap kube-dns: %q cannot be a stub domain [write a domain outside the cluster, as corp.example]", domain)
		}
		stubs = append(stubs, stub{domain, list})
	}
	slices.SortFunc(stubs, func(a, b stub) int { return strings.Compare(a.Domain, b.Domain) })
	var servers []string
	if err := readJSON(filepath.Join(dir, "upstreamNameservers"), &servers); err != nil {
		return nil, "", err
	}
	if servers != nil {
		if upstreams, err = serverList(servers); err != nil {
			return nil, "", fmt.Errorf("ConfigMap kube-dns, upstreamNameservers: %w", err)
		}
	}
	return stubs, upstreams, nil
}

// readJSON reads one key of a ConfigMap. A missing key is no error.
func readJSON(path string, into any) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		return fmt.Errorf("ConfigMap kube-dns, %s: %w", filepath.Base(path), err)
	}
	return nil
}

// serverList returns addresses, with ports or without, as arguments of forward.
func serverList(servers []string) (string, error) {
	if len(servers) == 0 {
		return "", errors.New("no server is named")
	}
	for _, s := range servers {
		_, err := netip.ParseAddrPort(s)
		if _, plain := netip.ParseAddr(s); err != nil && plain != nil {
			return "", fmt.Errorf("%q is not an address [write it as 192.0.2.53 or 192.0.2.53:5353]", s)
		}
	}
	return strings.Join(servers, " "), nil
}
