#!/usr/bin/env bash
# What the GitHub Action runs: inputs come as FEDSEAL_ACTION_* variables, never as text inside of a script.
set -euo pipefail
out=${FEDSEAL_ACTION_OUT:-fedseal-audit}
read -r -a scenarios <<<"${FEDSEAL_ACTION_SCENARIO:-}"
read -r -a further <<<"${FEDSEAL_ACTION_ARGS:-}"
options=(--out "$out")
[ -z "${FEDSEAL_ACTION_FAIL_ON:-}" ] || options+=(--fail-on "$FEDSEAL_ACTION_FAIL_ON")
[ "${FEDSEAL_ACTION_STRICT:-false}" != true ] || options+=(--strict)
[ -z "${FEDSEAL_ACTION_CONTROL:-}" ] || options+=(--control "$FEDSEAL_ACTION_CONTROL")
[ -z "${FEDSEAL_ACTION_BASELINE:-}" ] || options+=(--baseline "$FEDSEAL_ACTION_BASELINE")
[ "${FEDSEAL_ACTION_REDACT:-true}" != true ] || options+=(--redact)
{
  echo "report=$out/report.html"
  echo "junit=$out/junit.xml"
  echo "sarif=$out/report.sarif"
} >>"${GITHUB_OUTPUT:-/dev/null}"
code=0
fedseal audit "${scenarios[@]}" "${options[@]}" "${further[@]}" || code=$?
if [ -n "${GITHUB_STEP_SUMMARY:-}" ] && [ -e "$out/store.sqlite" ]; then
  fedseal table "$out" >>"$GITHUB_STEP_SUMMARY" || true
fi
exit "$code"
