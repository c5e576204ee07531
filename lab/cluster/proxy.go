package cluster

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/fairway-net/fairway/internal/datapath"
)

// kubeProxyAddress is where a kube-proxy that the lab has started serves metrics, and its mode: the usual port is
// the agent's.
const kubeProxyAddress = "127.0.0.1:10349"

// proxyPorts are where the proxies of a node say their mode: Fairway's agent, and a
// kube-proxy that the lab has started beside it.
var proxyPorts = []struct{ name, address string }{
	{"fairway", "127.0.0.1:10249"},
	{"kube-proxy", kubeProxyAddress},
}

// proxies asks the proxies of a node for their mode. Those that do not answer, or proxy
// nothing, are left out.
func (l Lab) proxies(node string) []ProxyReport {
	var found []ProxyReport
	for _, p := range proxyPorts {
		mode, err := l.proxyMode(node, p.address)
		if err == nil && mode != datapath.None {
			found = append(found, ProxyReport{p.name, mode})
		}
	}
	return found
}

// hasProxy reports whether an agent or a proxy answers on the node, in any mode.
func (l Lab) hasProxy(node string) bool {
	return slices.ContainsFunc(proxyPorts, func(p struct{ name, address string }) bool {
		_, err := l.proxyMode(node, p.address)
		return err == nil
	})
}

// proxyMode asks on the node's loopback, with one connection that this goroutine opens:
// only its thread is in the node's network namespace.
func (l Lab) proxyMode(node, address string) (mode string, err error) {
	err = l.fabric().Do(node, func() error {
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		request, err := http.NewRequest(http.MethodGet, "http://"+address+"/proxyMode", nil)
		if err != nil {
			return err
		}
		request.Close = true
		if err := request.Write(conn); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), request)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(io.LimitReader(answer.Body, 64))
		mode = strings.TrimSpace(string(body))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("ask the proxy of %s for its mode: %w", node, err)
	}
	return mode, nil
}

// proxyColumn is how status shows the proxies of a node.
func proxyColumn(found []ProxyReport) string {
	var words []string
	for _, p := range found {
		words = append(words, p.Name+" "+p.Mode)
	}
	if len(words) == 0 {
		return "-"
	}
	return strings.Join(words, ", ")
}

// runs reports whether proxies have the mode that is wanted: what they say counts, and only
// if none answers what up was told.
func (s *State) runs(found []ProxyReport, mode string) bool {
	if len(found) == 0 || mode == datapath.Auto {
		return mode == s.Options.ProxyMode
	}
	return slices.ContainsFunc(found, func(p ProxyReport) bool { return p.Mode == mode })
}

// proxyText is the mode of the lab's proxies in a line about the lab; told is what up was
// told.
func proxyText(found []ProxyReport, told string) string {
	if len(found) == 0 {
		return told + " (no proxy answers)"
	}
	return proxyColumn(found)
}
