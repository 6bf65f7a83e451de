// Formats of numbers, and the link to a report. Values become text nodes: nothing from a run is markup.
var dagfuncs = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});
var dagcomponentfuncs = (window.dashAgGridComponentFunctions = window.dashAgGridComponentFunctions || {});

dagfuncs.score = (value) => (value === null ? "–" : value === undefined ? "" : value.toFixed(1));

dagfuncs.clock = (seconds) => {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(whole / 60) % 60;
  const hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
};

dagcomponentfuncs.Page = (props) => {
  if (!props.value) return null;
  const path = props.value.split("/").map(encodeURIComponent).join("/");
  return React.createElement("a", { href: `pages/${path}`, target: "_blank", rel: "noopener" }, "report");
};

// AG Grid's own theme follows this attribute.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const followTheme = () => (document.documentElement.dataset.agThemeMode = dark.matches ? "dark" : "light");
dark.addEventListener("change", followTheme);
followTheme();
