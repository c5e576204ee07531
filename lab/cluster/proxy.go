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

// kubeProxyAddress is the address at which the lab's kube-proxy serves its metrics and mode. The agent uses the usual
// port.
const kubeProxyAddress = "127.0.0.1:10349"

// proxyPorts are the addresses at which the proxies of a node report their mode. The node has Fairway's agent, and may
// also have the lab's kube-proxy.
var proxyPorts = []struct{ name, address string }{
	{"fairway", "127.0.0.1:10249"},
	{"kube-proxy", kubeProxyAddress},
}

// proxies asks the proxies of a node for their mode. It leaves out proxies that do not answer or do not carry Services.
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

// proxyMode asks a proxy on the node's loopback for its mode. The connection must start on this goroutine, because only
// this thread is in the node's network namespace.
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

// proxyColumn formats the proxies of a node for the table of status.
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

// runs reports whether a proxy runs in the mode. If no proxy answers, the mode that Up was given counts.
func (s *State) runs(found []ProxyReport, mode string) bool {
	if len(found) == 0 || mode == datapath.Auto {
		return mode == s.Options.ProxyMode
	}
	return slices.ContainsFunc(found, func(p ProxyReport) bool { return p.Mode == mode })
}

// proxyText describes the lab's proxies for a line about the lab. told is the mode that Up was given.
func proxyText(found []ProxyReport, told string) string {
	if len(found) == 0 {
		return told + " (no proxy answers)"
	}
	return proxyColumn(found)
}
